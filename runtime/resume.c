/*
 * resume.c - checkpoints: what a run needs to go on as if it had never stopped.
 *
 *   DIR/latest                            names of the checkpoints kept, the newest first
 *   DIR/step-000200/model.safetensors     parameters, the same bytes as --save writes
 *   DIR/step-000200/optimizer.safetensors moments: adam.m.NAME, adam.v.NAME or sgd.m.NAME;
 *                                         its metadata: step, seed, sequences taken, ..
 *
 * A checkpoint is written as DIR/step-000200.tmp by all ranks, each its own byte ranges,
 * synced, and renamed as a whole; then `latest` is written beside itself, synced and
 * renamed. Whatever moment the process dies at, `latest` names a folder that is complete.
 * Two are kept. Folders with the name of a checkpoint that `latest` does not have, and what
 * a dead run left as *.tmp, are removed at the next checkpoint.
 *
 * Everything is in whole tensors, so any layout, number of stages, slices and `zero` can
 * go on. The schedule and the bias correction depend on the step alone, dropout and masks
 * on (seed, step, token), the data on the sequences taken before: nothing else is kept.
 */
#include "rt_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { DIGITS = 6, VERSION = 2 };       // of checkpoints: 1 had no checksums
static const char *const file_name[2] = { "model.safetensors", "optimizer.safetensors" };
static const char *const optimizer_word[2] = { "adamw", "sgd" };

/* "DIR/NAME" */
static char *in_dir(const char *dir, const char *name)
{
    size_t room = strlen(dir) + strlen(name) + 2;
    char *out = rt_alloc(room, 1);
    snprintf(out, room, "%s%s%s", dir, *dir && dir[strlen(dir) - 1] == '/' ? "" : "/", name);
    return out;
}

static int broken(Rt *rt, const char *path, const char *doing)
{
    return rt_fail(rt, RT_WORLD, "%s: error: could not %s: %s%s", path, doing, strerror(errno),
                   rt->keep.hint);
}

/* step-000200: the name of a checkpoint, and of nothing else. */
static bool is_checkpoint(const char *name)
{
    size_t n = strlen(name);
    return strncmp(name, "step-", 5) == 0 && n >= 5 + DIGITS && n < RT_KEEP_NAME
           && strspn(name + 5, "0123456789") == n - 5;
}

static bool ends_in_tmp(const char *name)
{
    size_t n = strlen(name);
    bool ours = strncmp(name, "step-", 5) == 0 || strcmp(name, "latest.tmp") == 0;
    return n > 4 && ours && strcmp(name + n - 4, ".tmp") == 0;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* ---- the folder ---------------------------------------------------------- */

/* Names in `latest`, the newest first; 0: there is none. -1: it is something else. */
static int read_latest(const char *dir, char name[RT_KEEP][RT_KEEP_NAME])
{
    char *path = in_dir(dir, "latest"), line[256];
    FILE *f = fopen(path, "r");
    free(path);
    int n = 0;
    while (f && n >= 0 && n < RT_KEEP && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (is_checkpoint(line))
            strcpy(name[n++], line);
        else
            n = -1;
    }
    if (f && n == 0)
        n = -1;
    if (f)
        fclose(f);
    return n;
}

/* Removes a checkpoint, or what there is of one: our files, and then the folder if it is
 * empty. Another's files stay. */
static void remove_folder(const char *path)
{
    for (int i = 0; i < 2; i++) {
        char *file = in_dir(path, file_name[i]);
        unlink(file);
        free(file);
    }
    rmdir(path);
}

static bool is_kept(const Rt *rt, const char *name)
{
    for (int i = 0; i < rt->keep.n; i++)
        if (strcmp(rt->keep.name[i], name) == 0)
            return true;
    return false;
}

/* What dead runs left; with `old` also checkpoints that are no longer kept. These lose
 * their name first: half of one is never found. */
static void clean(Rt *rt, bool old)
{
    const char *dir = rt->keep.dir;
    DIR *d = opendir(dir);
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));) {
        bool tmp = ends_in_tmp(e->d_name);
        if (!tmp && !(old && is_checkpoint(e->d_name) && !is_kept(rt, e->d_name)))
            continue;
        char *path = in_dir(dir, e->d_name);
        if (!tmp) {
            size_t room = strlen(path) + 5;
            char *to = rt_alloc(room, 1);
            snprintf(to, room, "%s.tmp", path);
            remove_folder(to);
            if (rename(path, to) == 0)
                remove_folder(to);
            free(to);
        } else if (is_folder(path)) {
            remove_folder(path);
        } else {
            unlink(path);
        }
        free(path);
    }
    closedir(d);
}

/* mkdir -p */
static int make_folder(const char *path)
{
    size_t n = strlen(path);
    char *p = rt_alloc(n + 1, 1);
    strcpy(p, path);
    for (size_t i = 1; i <= n; i++) {
        if (p[i] != '/' && p[i] != 0)
            continue;
        p[i] = 0;
        if (mkdir(p, 0777) && errno != EEXIST) {
            free(p);
            return -1;
        }
        p[i] = i < n ? '/' : 0;
    }
    free(p);
    if (is_folder(path))
        return 0;
    errno = ENOTDIR;
    return -1;
}

/* Before the first step: the folder is there and ours alone. */
int rt_checkpoint_open(Rt *rt)
{
    RtKeep *k = &rt->keep;
    for (int i = 0; i < 2; i++)
        k->file[i] = (RtOutput){ .fd = -1, .what = "checkpoint", .hint = k->hint };
    k->file[0].first = k->file[0].last = RT_WEIGHTS;
    k->file[1].first = RT_MOMENT_1;
    k->file[1].last = rt_last_values(rt);
    k->lock = -1;
    if (rt->head->train.checkpoint_every <= 0 || !k->dir || rt->steps <= rt->first_step)
        return RT_OK;
    k->on = true;
    if (rt->first > 0)
        return RT_OK;
    if (make_folder(k->dir))
        return broken(rt, k->dir, "make the folder of the checkpoints");
    k->lock = open(k->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (k->lock < 0 || access(k->dir, W_OK))
        return broken(rt, k->dir, "write checkpoints there");
    if (flock(k->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        close(k->lock);
        k->lock = -1;                   // what is begun there is the other run's
        return rt_fail(rt, RT_WORLD, "%s: error: another run writes its checkpoints there",
                       k->dir);
    }
    k->n = read_latest(k->dir, k->name);
    if (k->n < 0)
        return rt_fail(rt, RT_USER, "%s/latest: error: it does not name checkpoints "
                       "[checkpoint-file]", k->dir);
    if (k->n > 0 && !rt->options->resume)
        rt_note(rt, "warning: %s has checkpoints of an earlier run, up to %s; they make room for "
                "those of this one (--resume %s goes on from there)", k->dir, k->name[0], k->dir);
    return RT_OK;
}

void rt_checkpoint_close(Rt *rt)
{
    RtKeep *k = &rt->keep;
    for (int i = 0; i < 2 && k->on; i++)
        rt_output_forget(rt, &k->file[i]);
    if (k->on && k->lock >= 0) {
        clean(rt, false);
        close(k->lock);                 // and the lock with it
    }
    free(k->dir);
    *k = (RtKeep){ .on = false };
}

/* ---- writing ------------------------------------------------------------- */

/* Who can go on with this checkpoint, and where. */
static char *state_words(const Rt *rt, int64_t step)
{
    const RtHeader *h = rt->head;
    enum { ROOM = 1024 };
    char *out = rt_alloc(ROOM, 1);
    snprintf(out, ROOM, ",\"teracube\":\"%d\",\"step\":\"%lld\",\"seed\":\"%llu\","
             "\"sequences\":\"%lld\",\"batch\":\"%lld\",\"sequence\":\"%lld\",\"tokens\":\"%lld\","
             "\"order\":\"%s\",\"optimizer\":\"%s\",\"precision\":\"%s\"", VERSION, (long long)step,
             (unsigned long long)h->train.seed, (long long)rt_data_position(rt, step),
             (long long)h->batch, (long long)h->sequence, (long long)rt_data_tokens(rt->data),
             rt->order && strcmp(rt->order, "shuffle") == 0 ? "shuffle" : "sequential",
             optimizer_word[h->optimizer != 0],
             h->params_stored != RT_REAL ? "bf16" : rt->real == 8 ? "fp64" : "fp32");
    return out;
}

/* Of this process: the names of the files. */
static void name_files(Rt *rt, int64_t step)
{
    RtKeep *k = &rt->keep;
    char folder[RT_KEEP_NAME + 8];
    snprintf(k->now, sizeof k->now, "step-%0*lld", DIGITS, (long long)step);
    snprintf(folder, sizeof folder, "%s.tmp", k->now);
    snprintf(k->hint, sizeof k->hint, "\nnote: the run ends after step %lld; ", (long long)step);
    size_t at = strlen(k->hint);
    if (k->n > 0)
        snprintf(k->hint + at, sizeof k->hint - at, "%s in %.160s is complete", k->name[0],
                 k->dir);
    else
        snprintf(k->hint + at, sizeof k->hint - at, "there is no checkpoint before it");
    char *tmp = in_dir(k->dir, folder);
    for (int i = 0; i < 2; i++) {
        RtOutput *o = &k->file[i];
        free(o->path);
        free(o->tmp);
        o->tmp = in_dir(tmp, file_name[i]);
        o->path = in_dir(tmp, file_name[i]);
    }
    free(tmp);
    free(k->file[1].metadata);
    k->file[1].metadata = state_words(rt, step);
}

/* Gives the folder its name. One of that name, of an earlier run, changes places with it
 * where the system can do that; then it is removed. */
static int rename_folder(const char *from, const char *to)
{
    if (!is_folder(to))
        return rename(from, to);
    if (syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE)) {
        size_t room = strlen(to) + 9;
        char *old = rt_alloc(room, 1);
        snprintf(old, room, "%s.old.tmp", to);
        int bad = rename(to, old) || rename(from, to);
        remove_folder(old);
        free(old);
        return bad;
    }
    remove_folder(from);
    return 0;
}

/* `latest` with the new name in front. */
static int write_latest(Rt *rt)
{
    RtKeep *k = &rt->keep;
    char name[RT_KEEP][RT_KEEP_NAME] = { { 0 } };
    int n = 1;
    strcpy(name[0], k->now);
    for (int i = 0; i < k->n && n < RT_KEEP; i++)
        if (strcmp(k->name[i], k->now) != 0)
            strcpy(name[n++], k->name[i]);
    char *tmp = in_dir(k->dir, "latest.tmp"), *path = in_dir(k->dir, "latest");
    FILE *f = fopen(tmp, "w");
    bool bad = !f;
    for (int i = 0; f && i < n; i++)
        bad |= fprintf(f, "%s\n", name[i]) < 0;
    if (f) {
        bad |= fflush(f) || fsync(fileno(f));
        bad |= fclose(f) != 0;
    }
    bad = bad || rename(tmp, path) || rt_sync_folder(path);
    int status = bad ? broken(rt, path, "write the list of checkpoints") : RT_OK;
    free(tmp);
    free(path);
    if (!bad) {
        memcpy(k->name, name, sizeof name);
        k->n = n;
    }
    return status;
}

/* Rank 0: the files are complete and on the disk. */
static int end_checkpoint(Rt *rt)
{
    RtKeep *k = &rt->keep;
    char folder[RT_KEEP_NAME + 8];
    snprintf(folder, sizeof folder, "%s.tmp", k->now);
    char *tmp = in_dir(k->dir, folder), *path = in_dir(k->dir, k->now);
    bool bad = rt_sync_folder(k->file[0].tmp) || rename_folder(tmp, path) || rt_sync_folder(path);
    int status = bad ? broken(rt, path, "write the checkpoint") : write_latest(rt);
    free(tmp);
    free(path);
    if (!status)
        clean(rt, true);
    return status;
}

/* Rank 0: a folder for the files. */
static int begin_checkpoint(Rt *rt)
{
    const RtOutput *o = &rt->keep.file[0];
    char *tmp = rt_alloc(strlen(o->tmp) + 1, 1);
    strcpy(tmp, o->tmp);
    *strrchr(tmp, '/') = 0;
    clean(rt, false);
    int bad = mkdir(tmp, 0777);
    int status = bad ? broken(rt, tmp, "make the folder of the checkpoint") : RT_OK;
    free(tmp);
    return status;
}

/* After `step` steps. All workers of all ranks call it. An error is kept in rt, and made
 * everybody's where all meet next. */
int rt_checkpoint(RtWorker *w, int64_t step)
{
    RtRank *r = w->rank;
    Rt *rt = r->rt;
    bool lead = w->index == 0;
    if (!rt->keep.on)
        return RT_OK;
    if (lead && rt->options->device)
        rt_device_pull(r);
    if (lead && r->id == rt->first)
        name_files(rt, step);
    if (lead && r->id == 0)
        begin_checkpoint(rt);
    RT_TRY(rt_write_outputs(w, rt->keep.file, 2));
    if (lead && r->id == 0)
        end_checkpoint(rt);
    return lead ? rt_agree(w) : RT_OK;
}

/* ---- going on ------------------------------------------------------------ */

/* The checkpoint that --resume means: the folder itself, or the newest in it. */
static int find_checkpoint(Rt *rt, const char *dir, char **out)
{
    char name[RT_KEEP][RT_KEEP_NAME], *file = in_dir(dir, file_name[1]);
    bool itself = access(file, F_OK) == 0;
    free(file);
    *out = NULL;
    if (itself) {
        *out = in_dir(dir, ".");
        (*out)[strlen(*out) - 2] = 0;
        return RT_OK;
    }
    int n = read_latest(dir, name);
    for (int i = 0; i < n; i++) {
        char *path = in_dir(dir, name[i]);
        if (is_folder(path)) {
            *out = path;
            return RT_OK;
        }
        free(path);
    }
    if (n < 0)
        return rt_fail(rt, RT_USER, "%s/latest: error: it does not name checkpoints "
                       "[checkpoint-file]", dir);
    if (n > 0)
        return rt_fail(rt, RT_USER, "%s: error: `latest` names %s, which is not there "
                       "[checkpoint-file]", dir, name[0]);
    return rt_fail(rt, RT_USER, "%s: error: no checkpoint there: %s [checkpoint-file]", dir,
                   is_folder(dir) ? "it has no file `latest`" : strerror(errno ? errno : ENOTDIR));
}

static int read_tensors(Rt *rt, const char *folder, int i, RtTensors **out)
{
    char *path = in_dir(folder, file_name[i]);
    *out = rt_alloc(1, sizeof **out);
    int status = rt_tensors_read(rt, path, *out);
    free(path);
    return status;
}

static int state_number(Rt *rt, const char *key, int64_t *out)
{
    const char *word = rt_tensors_word(rt->moments, key);
    char *end;
    errno = 0;
    long long v = word ? strtoll(word, &end, 10) : -1;
    if (!word)
        return rt_fail(rt, RT_USER, "%s: error: no checkpoint: its metadata has no `%s` "
                       "[checkpoint-file]", rt->moments->file, key);
    if (errno || *end || end == word || v < 0)
        return rt_fail(rt, RT_USER, "%s: error: `%s` is `%s`, expected a whole number "
                       "[checkpoint-file]", rt->moments->file, key, word);
    *out = v;
    return RT_OK;
}

/* A version that this program reads, with the checksums that it has. */
static int check_version(Rt *rt)
{
    int64_t version = 0;
    RT_TRY(state_number(rt, "teracube", &version));
    if (version > VERSION)
        return rt_fail(rt, RT_USER, "%s: error: a checkpoint of version %lld, this program reads "
                       "those up to %d [checkpoint-file]", rt->moments->file, (long long)version,
                       VERSION);
    const RtTensors *all[] = { rt->moments, rt->load };
    for (int i = 0; i < 2 && version >= 2; i++)
        if (!all[i]->has_crc)
            return rt_fail(rt, RT_USER, "%s: error: its metadata has no `crc32c`, a checkpoint of "
                           "version %lld has [checkpoint-file]", all[i]->file, (long long)version);
    return RT_OK;
}

/* Does it fit this run? What may change is told. */
static int check_state(Rt *rt)
{
    RtHeader *h = &rt->own;
    int64_t seed, sequence, batch;
    const char *file = rt->moments->file, *word = rt_tensors_word(rt->moments, "optimizer");
    const char *mine = optimizer_word[h->optimizer != 0];
    RT_TRY(state_number(rt, "step", &rt->first_step));
    RT_TRY(state_number(rt, "sequences", &rt->first_sequence));
    RT_TRY(state_number(rt, "seed", &seed));
    RT_TRY(state_number(rt, "sequence", &sequence));
    RT_TRY(state_number(rt, "batch", &batch));
    if (!word || strcmp(word, mine) != 0)
        return rt_fail(rt, RT_USER, "%s: error: made with optimizer %s, this run has %s "
                       "[checkpoint-fit]", file, word ? word : "?", mine);
    if (sequence != h->sequence)
        return rt_fail(rt, RT_USER, "%s: error: made with sequences of %lld tokens, this run has "
                       "%lld [checkpoint-fit]\nnote: --load takes the weights alone and begins "
                       "anew", file, (long long)sequence, (long long)h->sequence);
    if ((uint64_t)seed != h->train.seed)
        rt_note(rt, "note: seed %lld of the checkpoint, not %llu, goes on", (long long)seed,
                (unsigned long long)h->train.seed);
    if (batch != h->batch)
        rt_note(rt, "note: steps of %lld sequences go on from steps of %lld", (long long)h->batch,
                (long long)batch);
    h->train.seed = (uint64_t)seed;
    return RT_OK;
}

int rt_resume_open(Rt *rt)
{
    const char *dir = rt->options->resume;
    char *folder;
    if (!dir)
        return RT_OK;
    if (rt->options->load)
        return rt_fail(rt, RT_USAGE, "%s: error: --resume and --load exclude each other", rt->exe);
    RT_TRY(find_checkpoint(rt, dir, &folder));
    int status = read_tensors(rt, folder, 1, &rt->moments);
    if (!status)
        status = check_state(rt);
    if (!status)
        status = read_tensors(rt, folder, 0, &rt->load);
    free(folder);
    RT_TRY(status);
    RT_TRY(check_version(rt));
    RT_TRY(rt_tensors_match(rt, rt->load, RT_WEIGHTS, RT_WEIGHTS, true));
    RT_TRY(rt_tensors_match(rt, rt->moments, RT_MOMENT_1, rt_last_values(rt), true));
    if (rt->steps <= rt->first_step)
        rt_note(rt, "note: the checkpoint is of step %lld, the run of %lld: nothing is left to do",
                (long long)rt->first_step, (long long)rt->steps);
    return RT_OK;
}

/* With the data open: is it what the first run had? */
void rt_resume_data(const Rt *rt)
{
    const char *tokens = rt->moments ? rt_tensors_word(rt->moments, "tokens") : NULL;
    const char *order = rt->moments ? rt_tensors_word(rt->moments, "order") : NULL;
    const char *mine = rt->order && strcmp(rt->order, "shuffle") == 0 ? "shuffle" : "sequential";
    if (tokens && strtoll(tokens, NULL, 10) != rt_data_tokens(rt->data))
        rt_note(rt, "warning: the data have %lld tokens, %s when the checkpoint was written: other "
                "sequences follow", (long long)rt_data_tokens(rt->data), tokens);
    if (order && strcmp(order, mine) != 0)
        rt_note(rt, "warning: order = %s, %s when the checkpoint was written: other sequences "
                "follow", mine, order);
}
