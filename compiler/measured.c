/*
 * measured.c - logs and traces of runs, read back (measured.h).
 */
#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>

#include "diag.h"
#include "emit.h"
#include "json.h"
#include "measured.h"

bool measured_is(const char *path)
{
    FILE *f = fopen(path, "rb");
    int c = ' ';
    while (f && (c == ' ' || c == '\n' || c == '\t' || c == '\r'))
        c = fgetc(f);
    if (f)
        fclose(f);
    return c == '[' || c == '{';
}

static char *whole_file(const char *path, size_t *n)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    if (f == NULL || fstat(fileno(f), &st) != 0)
        die(EXIT_INPUT, "could not read %s: %s", path, strerror(errno));
    char *text = arena_get(perm, (size_t)st.st_size + 1);
    *n = fread(text, 1, (size_t)st.st_size, f);
    if (ferror(f))
        die(EXIT_INPUT, "could not read %s: %s", path, strerror(errno));
    fclose(f);
    return text;
}

/* Only the line at byte `at` becomes a source, behind as many line ends as stand before it: files
 * of runs may be large. With `words` nothing is printed. */
static void report(const char *path, const char *text, size_t n, size_t at, const char *why,
                   const char **words)
{
    size_t from = at, to = at, line = 0;
    while (from > 0 && text[from - 1] != '\n')
        from--;
    while (to < n && text[to] != '\n' && to - at < 200)
        to++;
    for (size_t i = 0; i < from; i++)
        line += text[i] == '\n';
    if (words) {
        *words = str_fmt("%s:%zu:%zu: this is no log or trace of a run: %s", path, line + 1,
                         at - from + 1, why);
        return;
    }
    Text t = { 0 };
    for (size_t i = 0; i < line; i++)
        text_bytes(&t, "\n", 1);
    text_bytes(&t, text + from, to - from);
    uint32_t here = source_add(path, t.at ? t.at : "", t.n) + (uint32_t)(line + at - from);
    diag_error((Loc){ here, here + 1 }, "run-valid", "this is no log or trace of a run: %s", why);
    diag_hint("`teracube run FILE --log F` and `--trace F` write what is read here");
}

/* ---- logs ---------------------------------------------------------------------------- */

static void read_run(Measured *m, JsonIn *j)
{
    m->step_s.n = 0;                // a run that was resumed: its last part
    for (json_open(j, '{'); json_more(j, '}');) {
        const char *name = json_name(j);
        if (strcmp(name, "model") == 0)
            m->model = json_get_text(j);
        else if (strcmp(name, "plan") == 0)
            m->plan = json_get_text(j);
        else if (strcmp(name, "model_hash") == 0)
            m->model_hash = json_get_text(j);
        else if (strcmp(name, "blas") == 0)
            m->blas = json_get_text(j);
        else if (strcmp(name, "precision") == 0)
            m->precision = json_get_text(j);
        else if (strcmp(name, "devices") == 0)
            m->devices = (int)json_get_number(j);
        else if (strcmp(name, "workers") == 0)
            m->workers = (int)json_get_number(j);
        else if (strcmp(name, "tokens_per_step") == 0)
            m->tokens = json_get_number(j);
        else
            json_skip(j);
    }
}

static const double LONGEST_S = 1e9;        // 30 years

static void read_log_line(Measured *m, JsonIn *j)
{
    double seconds = NAN;
    size_t at = j->at;
    for (json_open(j, '{'); json_more(j, '}');) {
        const char *name = json_name(j);
        if (strcmp(name, "run") == 0)
            read_run(m, j);
        else if (strcmp(name, "step_s") == 0)
            seconds = json_get_number(j);
        else
            json_skip(j);
    }
    if (j->why || isnan(seconds))
        return;
    if (seconds > 0 && seconds < LONGEST_S)
        vec_add(&m->step_s, seconds);
    else {
        j->at = at;
        j->why = str_fmt("a step of %s", str_seconds(seconds));
    }
}

/* ---- traces -------------------------------------------------------------------------- */

static bool pass_of(const char *word, StepKind *out)
{
    for (int i = 0; i < STEP_KINDS; i++)
        if (strcmp(word, step_word[i]) == 0) {
            *out = (StepKind)i;
            return true;
        }
    return false;
}

static bool read_args(Event *e, JsonIn *j)
{
    bool known = false;
    for (json_open(j, '{'); json_more(j, '}');) {
        const char *name = json_name(j);
        if (strcmp(name, "pass") == 0)
            known |= pass_of(json_get_text(j), &e->pass);
        else if (strcmp(name, "step") == 0)
            e->step = (int)json_get_number(j);
        else if (strcmp(name, "microbatch") == 0)
            e->microbatch = (int)json_get_number(j);
        else if (strcmp(name, "slice") == 0)
            e->slice = (int)json_get_number(j);
        else if (strcmp(name, "chunk") == 0)
            e->chunk = (int)json_get_number(j);
        else
            json_skip(j);
    }
    return known;
}

static void read_event(Measured *m, JsonIn *j)
{
    Event e = { .name = "" };
    const char *phase = "";
    bool known = false, simulated = false;
    for (json_open(j, '{'); json_more(j, '}');) {
        const char *name = json_name(j);
        if (strcmp(name, "name") == 0)
            e.name = json_get_text(j);
        else if (strcmp(name, "ph") == 0)
            phase = json_get_text(j);
        else if (strcmp(name, "pid") == 0)
            e.stage = (int)json_get_number(j);
        else if (strcmp(name, "tid") == 0)
            e.rank = (int)json_get_number(j);
        else if (strcmp(name, "ts") == 0)
            e.begin = 1e-6 * json_get_number(j);
        else if (strcmp(name, "dur") == 0)
            e.seconds = 1e-6 * json_get_number(j);
        else if (strcmp(name, "cat") == 0)
            simulated = pass_of(json_get_text(j), &e.pass);
        else if (strcmp(name, "args") == 0)
            known |= read_args(&e, j);
        else
            json_skip(j);
    }
    if (j->why || strcmp(phase, "X") != 0 || !(e.seconds >= 0) || !isfinite(e.begin))
        return;
    m->is_simulated |= simulated && !known;
    if (known || simulated)
        vec_add(&m->events, e);
}

static void read_trace(Measured *m, JsonIn *j)
{
    if (json_peek(j) == '{') {          // {"traceEvents": [..]}
        for (json_open(j, '{'); json_more(j, '}');) {
            if (strcmp(json_name(j), "traceEvents") != 0)
                json_skip(j);
            else
                for (json_open(j, '['); json_more(j, ']');)
                    read_event(m, j);
        }
        return;
    }
    for (json_open(j, '['); json_more(j, ']');)
        read_event(m, j);
}

/* ---- a run ----------------------------------------------------------------------------- */

static bool is_trace(const char *text, size_t n)
{
    size_t first = n < 4096 ? n : 4096;
    for (size_t i = 0; i + 13 < first; i++)
        if (memcmp(text + i, "\"traceEvents\"", 13) == 0)
            return true;
    return text[strspn(text, " \t\r\n")] == '[';
}

/* A run that was killed leaves a trace without an end. What its last step lacks would be
 * taken for speed, so that step goes. */
static void drop_last_step(Measured *m)
{
    int last = -1, kept = 0;
    for (int i = 0; i < m->events.n; i++)
        last = m->events.at[i].step > last ? m->events.at[i].step : last;
    for (int i = 0; i < m->events.n; i++)
        if (m->events.at[i].step != last)
            m->events.at[kept++] = m->events.at[i];
    m->events.n = kept;
}

static bool read_file(Measured *m, const char *path, const char **why)
{
    size_t n = 0;
    const char *text = whole_file(path, &n);
    JsonIn json = { .text = text, .n = n }, *j = &json;
    bool trace = is_trace(text, n);
    const char **one = trace ? &m->trace : &m->log;
    if (*one)
        die(EXIT_USAGE, "%s and %s are both %s; one run has one", *one, path,
            trace ? "traces" : "logs");
    *one = path;
    if (trace)
        read_trace(m, j);
    else
        while (json_peek(j))
            read_log_line(m, j);
    arena_reset(scratch);
    bool cut = j->why && j->ended;
    if (cut && trace)
        drop_last_step(m);
    if (j->why && !(cut && (trace ? m->events.n : m->step_s.n) > 0)) {
        report(path, text, n, j->at < n ? j->at : n, cut && trace
               ? "it ends within its first step" : j->why, why);
        return false;
    }
    if (trace ? m->events.n == 0 : m->step_s.n == 0) {
        report(path, text, n, 0, trace ? "it has no events of plan steps"
                                       : "it has no steps with their seconds", why);
        return false;
    }
    return true;
}

Measured *measured_read(const char *const *paths, int n, const char **why)
{
    Measured *m = NEW(Measured);
    m->model = m->plan = m->blas = m->precision = m->model_hash = "";
    for (int i = 0; i < n; i++)
        if (!read_file(m, paths[i], why))
            return NULL;
    return m;
}

const char *measured_mismatch(const Measured *m, const Plan *p, const char **hint)
{
    const char *line = plan_line(p);
    double tokens = (double)(p->is.batch * p->is.sequence);
    *hint = "name the files and --set options of the run";
    if (*m->plan && strcmp(m->plan, line) != 0)
        return str_fmt("%s is of another plan: %s; the files have %s", m->log, m->plan, line);
    if (*m->model && p->model_name && strcmp(m->model, p->model_name) != 0)
        return str_fmt("%s is of model %s; the files have %s", m->log, m->model, p->model_name);
    if (*m->model_hash &&
        strcmp(m->model_hash, str_fmt("%016" PRIx64, emitted_model_hash(p))) != 0)
        return str_fmt("%s is of a model with other parameters than those of the files", m->log);
    if (m->tokens > 0 && m->tokens != tokens) {
        *hint = "train.batch and train.sequence must be those of the run";
        return str_fmt("a step of %s has %.0f tokens; the files have %.0f", m->log, m->tokens,
                       tokens);
    }
    return NULL;
}
