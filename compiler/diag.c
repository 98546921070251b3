/*
 * diag.c - the byte space of all sources, and messages with a caret.
 *
 * A message is one line "file:line:column: error: what [check]", the quoted
 * line behind a margin, and a second line with ^~~~ under the place. Columns are
 * those of the screen: a tab goes to the next multiple of 8, a wide character
 * takes two. Identical messages (same place, same words) are shown and
 * counted once, so a block that is used twelve times complains once.
 */
#include "diag.h"

enum {
    SHOWN_ERRORS = 20,
    TAB = 8,
    LINE_WIDTH = 110,           // columns of a quoted line; longer ones are cut
    LINE_BEFORE = 60            // columns kept before the caret of a cut line
};

/* ---- sources -------------------------------------------------------------- */

typedef struct {
    const char *name;
    char *text;                 // n bytes and a zero
    uint32_t base, n;           // offsets base .. base + n (the end of the file)
    uint32_t *lines;            // offset in text of each line; NULL until asked for
    int nlines;
    bool is_option;             // part of the command line
} Source;

static VEC(Source) sources;

uint32_t source_add(const char *name, const char *text, size_t n)
{
    uint64_t base = 1;

    if (sources.n) {
        Source *last = &sources.at[sources.n - 1];
        base = (uint64_t)last->base + last->n + 1;
    }
    if (base + n + 1 > UINT32_MAX)
        die(EXIT_INPUT, "the files hold more than 4 GB of text");
    Source s = { .name = str(name), .base = (uint32_t)base, .n = (uint32_t)n };
    s.is_option = strncmp(name, "--", 2) == 0;
    s.text = arena_get(perm, n + 1);
    if (n)
        memcpy(s.text, text, n);
    vec_add(&sources, s);
    return s.base;
}

static Source *source_of(uint32_t at)
{
    int lo = 0, hi = sources.n;         // the last source with base <= at is in [lo, hi)

    if (at == 0 || sources.n == 0)
        return NULL;
    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;
        if (sources.at[mid].base <= at)
            lo = mid;
        else
            hi = mid;
    }
    Source *s = &sources.at[lo];
    return at <= s->base + s->n ? s : NULL;
}

const char *source_text(uint32_t at)
{
    Source *s = source_of(at);

    return s ? s->text + (at - s->base) : "";
}

const char *source_name(uint32_t at)
{
    Source *s = source_of(at);

    return s ? s->name : "";
}

const char *source_dir(uint32_t at)
{
    Source *s = source_of(at);
    const char *slash = s && !s->is_option ? strrchr(s->name, '/') : NULL;

    if (!slash)
        return str(".");
    return slash == s->name ? str("/") : str_of(s->name, (size_t)(slash - s->name));
}

static void find_lines(Source *s)
{
    int n = 1;

    for (uint32_t i = 0; i < s->n; i++)
        n += s->text[i] == '\n';
    s->lines = NEWN(uint32_t, n);
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->text[i] == '\n')
            s->lines[++s->nlines] = i + 1;
    }
    s->nlines = n;
}

/* Index of the line that holds byte `i` of the source. */
static int line_of(Source *s, uint32_t i)
{
    if (!s->lines)
        find_lines(s);
    int lo = 0, hi = s->nlines;
    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;
        if (s->lines[mid] <= i)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* ---- characters on the screen --------------------------------------------- */

/* Decodes one UTF-8 character of `n` bytes left; returns its length. A byte
 * that starts none gives U+FFFD. */
static int decode(const char *text, uint32_t n, uint32_t *code)
{
    const unsigned char *p = (const unsigned char *)text;
    int len = p[0] < 0x80 ? 1 : p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 0;

    *code = 0xfffd;
    if (len == 0 || (uint32_t)len > n)
        return 1;
    uint32_t c = len == 1 ? p[0] : p[0] & (0x7fu >> len);
    for (int i = 1; i < len; i++) {
        if (p[i] >> 6 != 2)
            return 1;
        c = c << 6 | (p[i] & 0x3f);
    }
    *code = c;
    return len;
}

/* Columns of a character: 0 for combining marks, 2 for East Asian wide ones. */
static int width_of(uint32_t c)
{
    static const struct { uint32_t first, last; int width; } ranges[] = {
        { 0x0300, 0x036f, 0 }, { 0x200b, 0x200f, 0 }, { 0x20d0, 0x20ff, 0 }, { 0xfe00, 0xfe0f, 0 },
        { 0xfe20, 0xfe2f, 0 }, { 0x1100, 0x115f, 2 }, { 0x2e80, 0x303e, 2 }, { 0x3041, 0xa4cf, 2 },
        { 0xac00, 0xd7a3, 2 }, { 0xf900, 0xfaff, 2 }, { 0xfe30, 0xfe6f, 2 }, { 0xff00, 0xff60, 2 },
        { 0xffe0, 0xffe6, 2 }, { 0x1f300, 0x1f64f, 2 }, { 0x1f680, 0x1f6ff, 2 },
        { 0x1f900, 0x1f9ff, 2 }, { 0x20000, 0x3fffd, 2 },
    };

    if (c < ranges[0].first)
        return 1;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        if (c >= ranges[i].first && c <= ranges[i].last)
            return ranges[i].width;
    }
    return 1;
}

typedef struct { uint32_t code; int bytes, width; } Glyph;

static Glyph glyph_at(const char *text, uint32_t n, int column)
{
    Glyph g;

    g.bytes = decode(text, n, &g.code);
    if (g.code == '\t')
        g.width = TAB - column % TAB;
    else
        g.width = width_of(g.code);
    return g;
}

/* Screen column, from 0, of byte `to` in a line that begins at `text`. */
static int column_of(const char *text, uint32_t to)
{
    int column = 0;

    for (uint32_t i = 0; i < to;) {
        Glyph g = glyph_at(text + i, to - i, column);
        column += g.width;
        i += (uint32_t)g.bytes;
    }
    return column;
}

/* ---- where ---------------------------------------------------------------- */

typedef struct {
    Source *source;
    int line;                   // from 0
    const char *text;           // the line
    uint32_t n;                 // its bytes, without the newline
    uint32_t first, last;       // the place inside it, [first, last)
    int column;                 // screen column of `first`, from 0
} Place;

static bool find_place(Loc loc, Place *p)
{
    Source *s = source_of(loc.start);

    if (!s)
        return false;
    uint32_t i = loc.start - s->base;
    p->source = s;
    p->line = line_of(s, i);
    uint32_t from = s->lines[p->line];
    uint32_t to = p->line + 1 < s->nlines ? s->lines[p->line + 1] - 1 : s->n;
    p->text = s->text + from;
    p->first = i - from;
    uint32_t end = loc.end > loc.start ? loc.end - s->base : i;
    p->last = (end < to ? end : to) - from;
    p->n = to - from;
    if (p->n && p->text[p->n - 1] == '\r')
        p->n--;
    p->column = column_of(p->text, p->first);
    return true;
}

const char *source_where(Loc loc)
{
    Place p;

    if (!find_place(loc, &p))
        return str("-");
    return str_fmt("%s:%d:%d", p.source->name, p.line + 1, p.column + 1);
}

/* ---- output --------------------------------------------------------------- */

static struct {
    int errors, hidden;         // counted, and counted but not shown
    int option_errors;          // of them, those inside the command line
    bool mute;                  // notes and hints belong to a message not shown
    VEC(const char *) warnings;
    Map *seen;
} state;

/* A character of a quoted line: a tab as blanks, what cannot be shown as `?`. */
static void put_glyph(const char *text, Glyph g)
{
    if (g.code == '\t')
        fprintf(stderr, "%*s", g.width, "");
    else if (g.code < 0x20 || g.code == 0xfffd || (g.code >= 0x7f && g.code < 0xa0))
        fputc('?', stderr);
    else
        fwrite(text, 1, (size_t)g.bytes, stderr);
}

static void put_line(const Place *p, int from, int to)
{
    int column = 0;
    uint32_t i = 0;

    if (from > 0)
        fputs("...", stderr);
    while (i < p->n && column < to) {
        Glyph g = glyph_at(p->text + i, p->n - i, column);
        if (column >= from)
            put_glyph(p->text + i, g);
        column += g.width;
        i += (uint32_t)g.bytes;
    }
    if (i < p->n)
        fputs("...", stderr);
    fputc('\n', stderr);
}

static void put_caret(const Place *p, int from, int to)
{
    int end = p->last > p->first ? column_of(p->text, p->last) : p->column + 1;
    int indent = p->column - from + (from > 0 ? 3 : 0);

    fprintf(stderr, "      | %*s^", indent, "");
    for (int c = p->column + 1; c < end && c < to; c++)
        fputc('~', stderr);
    fputc('\n', stderr);
}

/* The margin, the quoted line and the caret. */
static void put_quote(const Place *p)
{
    int from = 0, to = column_of(p->text, p->n);

    if (to > LINE_WIDTH) {
        if (p->column > LINE_BEFORE + TAB)
            from = p->column - LINE_BEFORE;
        // begin with a whole character
        int column = 0;
        for (uint32_t i = 0; i < p->n && column < from;) {
            Glyph g = glyph_at(p->text + i, p->n - i, column);
            column += g.width;
            i += (uint32_t)g.bytes;
        }
        from = column;
        to = from + LINE_WIDTH;
    }
    fprintf(stderr, p->n ? "%5d | " : "%5d |", p->line + 1);
    put_line(p, from, to);
    put_caret(p, from, to);
}

static const char *words(const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    char *text = arena_get(perm, (size_t)(n < 0 ? 0 : n) + 1);
    vsnprintf(text, (size_t)(n < 0 ? 0 : n) + 1, fmt, ap);
    return text;
}

static void put_message(Loc loc, const char *kind, const char *check, const char *text)
{
    Place p;
    bool has_place = find_place(loc, &p);

    fflush(stdout);
    if (has_place)
        fprintf(stderr, "%s:%d:%d: ", p.source->name, p.line + 1, p.column + 1);
    fprintf(stderr, "%s: %s", kind, text);
    if (check && *check)
        fprintf(stderr, " [%s]", check);
    fputc('\n', stderr);
    if (has_place)
        put_quote(&p);
}

/* True the second time that this message comes from this place. */
static bool seen_before(Loc loc, const char *text)
{
    const char *key = str_fmt("%u-%u %s", (unsigned)loc.start, (unsigned)loc.end, text);

    if (!state.seen)
        state.seen = map_new();
    if (map_get(state.seen, key) >= 0)
        return true;
    map_put(state.seen, key, 1);
    return false;
}

static void put_hidden(void)
{
    if (state.hidden)
        fprintf(stderr, "%d more error%s not shown\n", state.hidden,
                state.hidden == 1 ? " is" : "s are");
    state.hidden = 0;
}

void diag_error(Loc loc, const char *check, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    const char *text = words(fmt, ap);
    va_end(ap);
    state.mute = seen_before(loc, text);
    if (state.mute)
        return;
    Source *s = source_of(loc.start);
    state.errors++;
    state.option_errors += s && s->is_option;
    if (state.errors > SHOWN_ERRORS) {
        if (state.hidden++ == 0)
            atexit(put_hidden);
        state.mute = true;
        return;
    }
    put_message(loc, "error", check, text);
}

void diag_warning(Loc loc, const char *check, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    const char *text = words(fmt, ap);
    va_end(ap);
    state.mute = seen_before(loc, text);
    if (state.mute)
        return;
    const char *where = source_of(loc.start) ? str_fmt("%s: ", source_where(loc)) : "";
    const char *tail = check && *check ? str_fmt(" [%s]", check) : "";
    vec_add(&state.warnings, str_fmt("%s%s%s", where, text, tail));
    put_message(loc, "warning", check, text);
}

void diag_note(Loc loc, const char *fmt, ...)
{
    va_list ap;

    if (state.mute)
        return;
    va_start(ap, fmt);
    put_message(loc, "note", "", words(fmt, ap));
    va_end(ap);
}

void diag_hint(const char *fmt, ...)
{
    va_list ap;

    if (state.mute)
        return;
    va_start(ap, fmt);
    fprintf(stderr, "hint: %s\n", words(fmt, ap));
    va_end(ap);
}

int diag_errors(void)
{
    return state.errors;
}

int diag_status(void)
{
    if (state.errors == 0)
        return EXIT_FINE;
    return state.option_errors == state.errors ? EXIT_USAGE : EXIT_INPUT;
}

int diag_nwarnings(void)
{
    return state.warnings.n;
}

const char *diag_warning_text(int i)
{
    return state.warnings.at[i];
}

void die(int status, const char *fmt, ...)
{
    va_list ap;

    fflush(stdout);
    va_start(ap, fmt);
    fputs("error: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(status);
}

void bug_at(const char *file, int line, const char *fmt, ...)
{
    va_list ap;

    fflush(stdout);
    va_start(ap, fmt);
    fprintf(stderr, "fault: %s:%d: ", file, line);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(EXIT_FAULT);
}
