/*
 * main.c - rt_run, one training run from options to exit status, and rt_main,
 * the main function of executables that `teracube build` makes.
 */
#include "rt_impl.h"

#include <limits.h>
#include <math.h>
#include <unistd.h>

/* ---- a run --------------------------------------------------------------- */

static bool same_mesh(const RtHeader *a, const RtHeader *b)
{
    return a->nstages == b->nstages && a->data == b->data && a->x == b->x && a->y == b->y
           && a->z == b->z && a->zero == b->zero && a->workers == b->workers
           && a->balanced == b->balanced && a->microbatches == b->microbatches
           && a->batch == b->batch && a->sequence == b->sequence && a->T == b->T
           && a->nparams == b->nparams && a->real_bytes == b->real_bytes;
}

/* What the executor takes for granted of a stage's tables. */
static bool makes_sense(const RtProgram *p, const RtHeader *first, int stage)
{
    const RtHeader *h = p->head;
    bool real = h->real_bytes == sizeof(float) || h->real_bytes == sizeof(double);
    if (!real || h->data < 1 || h->x < 1 || h->y < 1 || h->z < 1 || h->workers < 1
        || h->sequence < 1 || h->microbatches < 1 || h->T % h->sequence || h->nslices < 1
        || h->stage != stage || !same_mesh(h, first))
        return false;
    int64_t tokens = 0;
    for (int i = 0; i < h->nslices; i++)
        tokens += p->slices[i];
    for (int i = 0; i < h->nrowmaps; i++) {
        const RtRowMap *m = &p->rowmaps[i];
        if (m->first < 0 || m->nslices < 1 || m->first + m->nslices > h->nslices)
            return false;
    }
    for (int i = 0; i < h->nsteps; i++) {
        const RtStep *q = &p->steps[i];
        bool message = q->kind == RT_SEND || q->kind == RT_RECV;
        bool moves = q->kind == RT_ALL_GATHER || q->kind == RT_BROADCAST
                     || q->kind == RT_ALL_TO_ALL;
        bool rooted = q->kind == RT_BROADCAST || q->kind == RT_REDUCE;
        if (moves && q->a.stored != q->c.stored)
            return false;
        if (rooted && (q->peer < 0 || q->peer >= (int64_t)h->data * h->x * h->y * h->z))
            return false;
        if (message && (q->peer < 0 || q->peer >= h->nstages || q->peer == stage))
            return false;
    }
    for (int i = 0; i < h->npasses; i++) {
        const RtPass *q = &p->passes[i];
        if (q->first < 0 || q->last < q->first || q->last > h->nsteps || q->microbatch < 0
            || q->microbatch >= h->microbatches || q->slice < 0 || q->slice >= h->nslices
            || q->chunk < 0 || q->kind < 0 || q->kind > RT_PASS_BEGIN)
            return false;
    }
    return tokens == h->sequence;
}

static int check_program(Rt *rt)
{
    const RtHeader *h = rt->program->head;
    if (h->version != RT_VERSION || h->header_bytes != sizeof(RtHeader)
        || h->step_bytes != sizeof(RtStep))
        return rt_fail(rt, RT_BUG, "%s: error: the program is of version %u (%u, %u bytes), this "
                       "runtime of %d (%zu, %zu); rebuild it", rt->exe, h->version,
                       h->header_bytes, h->step_bytes, RT_VERSION, sizeof(RtHeader),
                       sizeof(RtStep));
    bool good = h->nstages >= 1 && h->nstages <= 64;
    for (int s = 0; good && s < h->nstages; s++)
        good = makes_sense(&rt->program[s], h, s);
    return good ? RT_OK : rt_fail(rt, RT_BUG, "%s: error: the program's header makes no sense",
                                  rt->exe);
}

/* A name in the model file is relative to that file's folder. */
static char *path_of(Rt *rt, int32_t name)
{
    if (name < 0 || !*rt_text(rt->program, name))
        return NULL;
    const char *file = rt_text(rt->program, name);
    const char *dir = rt_text(rt->program, rt->program->head->train.data_dir);
    size_t room = strlen(file) + strlen(dir) + 2;
    char *out = rt_alloc(room, 1);
    bool plain = *file == '/' || !*dir || strcmp(dir, ".") == 0;
    snprintf(out, room, "%s%s%s", plain ? "" : dir,
             plain || dir[strlen(dir) - 1] == '/' ? "" : "/", file);
    return out;
}

static char *copy_text(const char *s)
{
    char *out = rt_alloc(strlen(s) + 1, 1);
    return strcpy(out, s);
}

/* NULL: not given */
static char *text_of(const Rt *rt, int32_t name)
{
    const char *text = rt_text(rt->program, name);
    return *text ? copy_text(text) : NULL;
}

static int apply_options(Rt *rt)
{
    const RtOptions *o = rt->options;
    const RtHeader *h = rt->program->head;
    rt->own = *h;
    rt->head = &rt->own;
    rt->data_path = path_of(rt, h->train.data);
    rt->load_path = text_of(rt, h->train.weights);
    rt->log_path = text_of(rt, h->train.log);
    if (!o->fixed_tokens) {
        rt->keep.dir = text_of(rt, h->train.checkpoint_dir);
        rt->validate_path = text_of(rt, h->train.validate_data);
    } else {
        rt->own.train.checkpoint_every = rt->own.train.validate_every = 0;
    }
    rt->format = copy_text(rt_text(rt->program, h->train.format));
    rt->order = copy_text(rt_text(rt->program, h->train.order));
    for (int i = 0; i < o->nsets; i++)
        RT_TRY(rt_set(rt, o->sets[i]));
    if (o->load) {
        free(rt->load_path);
        rt->load_path = copy_text(o->load);
    }
    if (o->log) {
        free(rt->log_path);
        rt->log_path = copy_text(o->log);
    }
    rt->steps = o->steps >= 0 ? o->steps : rt->own.train.steps;
    return RT_OK;
}

/* A launcher decides whether ranks are processes, RT_COMM over it. */
static int join_processes(Rt *rt)
{
    const char *want = getenv("RT_COMM");
    bool launched = rt_launched();
    if (rt->options->device)
        return rt->options->may_be_launched ? rt_remote_join(rt) : RT_OK;
    if (want && (strcmp(want, "threads") == 0 || strcmp(want, "mpi") == 0))
        launched = *want == 'm';
    return rt->options->may_be_launched && launched ? rt_mpi_join(rt) : RT_OK;
}

static int choose_comm(Rt *rt)
{
    const char *want = getenv("RT_COMM"), *limit = getenv("RT_TIMEOUT"), *look = getenv("RT_LOOK");
    want = want ? want : "";
    rt->look = look && strcmp(look, "1") == 0;
    rt->comm = rt->mpi ? &rt_comm_mpi : rt->remote ? &rt_comm_remote
             : rt->nranks > 1 ? &rt_comm_threads : &rt_comm_null;
    if (strcmp(want, "trace") == 0)
        rt->comm = &rt_comm_trace;
    else if (*want && strcmp(want, "threads") != 0 && strcmp(want, "mpi") != 0)
        return rt_fail(rt, RT_USAGE, "%s: error: RT_COMM=%s: there are threads, mpi and trace",
                       rt->exe, want);
    rt->timeout_s = 60;
    if (limit && *limit) {
        char *end;
        rt->timeout_s = strtod(limit, &end);
        if (*end || !(rt->timeout_s > 0) || !isfinite(rt->timeout_s))
            return rt_fail(rt, RT_USAGE, "%s: error: RT_TIMEOUT=%s: expected seconds", rt->exe,
                           limit);
    }
    return RT_OK;
}

static bool has_products(const Rt *rt)
{
    for (int s = 0; s < rt->head->nstages; s++)
        for (int i = 0; i < rt->program[s].head->nsteps; i++)
            if (rt->program[s].steps[i].kind == RT_GEMM)
                return true;
    return false;
}

static int choose(Rt *rt)
{
    RT_TRY(choose_comm(rt));
    if (rt->options->device)
        RT_TRY(rt_devices_choose(rt));
    return apply_options(rt);
}

/* What can fail for a user's reason fails here, before there are ranks. */
static int prepare(Rt *rt)
{
    int status = choose(rt);
    if (rt_processes(rt)) {
        RT_TRY(rt_processes_agree(rt, NULL));
        status = rt_same_files(rt);
    }
    RT_TRY(status);
    RT_TRY(rt_resume_open(rt));
    if (rt->steps > rt->first_step) {
        RT_TRY(rt_data_open(rt));
        rt_resume_data(rt);
        if (rt->head->train.validate_every > 0)
            RT_TRY(rt_validation_open(rt));
        RT_TRY(rt_data_spare(rt, "--log", rt->log_path));
        RT_TRY(rt_data_spare(rt, "--save", rt->options->save));
        RT_TRY(rt_data_spare(rt, "--trace", rt->options->trace));
        if (has_products(rt) && !rt->options->device)
            RT_TRY(rt_blas_open(rt));
    }
    RT_TRY(rt_load_open(rt));
    RT_TRY(rt_outputs_spare(rt));
    RT_TRY(rt_save_probe(rt));
    RT_TRY(rt_checkpoint_open(rt));
    return rt_log_open(rt);
}

static int train(Rt *rt)
{
    RT_TRY(check_program(rt));
    const RtHeader *h = rt->head;
    rt->real = h->real_bytes;
    rt->nranks = h->nstages * h->data * h->x * h->y * h->z;
    rt->nlocal = rt->nranks;
    rt->nworkers = h->workers;
    rt->save_id = getpid();
    RT_TRY(join_processes(rt));
    int status = prepare(rt);
    if (rt_processes(rt))
        status = rt_processes_agree(rt, NULL);
    rt_save_forget(rt);
    RT_TRY(status);
    if (rt_processes(rt))
        RT_TRY(rt_same_run(rt));
    if (rt->options->device)
        RT_TRY(rt_devices_meet(rt));
    rt_log_head(rt);
    return rt_exec(rt);
}

int rt_run(const RtProgram *program, const RtOptions *options)
{
    Rt *rt = rt_alloc(1, sizeof *rt);
    rt->program = program;
    rt->head = program->head;
    rt->options = options;
    rt->exe = options->exe ? options->exe : "teracube";
    rt->save.fd = -1;
    rt->started_s = rt_now_s();
    pthread_mutex_init(&rt->fault_lock, NULL);
    pthread_mutex_init(&rt->blas_lock, NULL);
    train(rt);                          // its status is kept in rt
    rt_log_close(rt);
    rt_save_forget(rt);
    rt_checkpoint_close(rt);
    int status = atomic_load(&rt->status);
    bool tells = rt->mpi ? status && rt_mpi_tells(rt)
                         : rt->remote ? status && rt_remote_tells(rt) : status;
    status = atomic_load(&rt->status);
    if (tells) {
        fflush(stdout);
        fprintf(stderr, "%s\n", rt->fault);
    }
    if (rt->mpi)
        rt_mpi_leave(rt);
    if (rt->remote)
        rt_remote_leave(rt);
    rt_load_close(rt);
    rt_data_close(rt);
    free(rt->data_path);
    free(rt->load_path);
    free(rt->log_path);
    free(rt->validate_path);
    free(rt->format);
    free(rt->order);
    pthread_mutex_destroy(&rt->fault_lock);
    pthread_mutex_destroy(&rt->blas_lock);
    free(rt);
    return status;
}

/* ---- main of a built executable ------------------------------------------ */

/* Before MPI has started: rank 0 speaks. The launcher ends all when the first one leaves. */
static bool another_speaks(void)
{
    if (rt_launched_rank() == 0)
        return false;
    sleep(1);
    return true;
}

static void help(const RtProgram *p, const RtOptions *o)
{
    const char *exe = o->exe;
    if (another_speaks())
        return;
    printf("usage: %s [OPTION]...\n"
           "Trains %s (%s).\n\n"
           "  --steps N              the run ends after step N (%lld); the schedule keeps its\n"
           "                         length\n"
           "  --load FILE            first weights, safetensors\n"
           "  --save FILE            weights after the last step, safetensors\n"
           "  --resume DIR           goes on from a checkpoint: the newest in DIR, or DIR itself\n"
           "  --log FILE             one JSON object a step\n"
           "  --trace FILE           times of every plan step, for Perfetto\n"
           "  --set train.KEY=VALUE  data format order steps optimizer schedule clip seed\n"
           "                         weights log validate checkpoint, and the numbers lr beta1\n"
           "                         beta2 eps weight_decay momentum warmup decay min\n"
           "  -q                     no lines on stdout\n"
           "  --help                 this text\n\n", exe, rt_text(p, p->head->model_name),
           rt_text(p, p->head->plan_line), (long long)p->head->train.steps);
    if (o->device)
        printf("  --root HOST:PORT       where rank 0 listens\n"
               "  --rank N --world N     this process is rank N, where no launcher says it\n"
               "  --profile FILE         measures the GPUs and their links instead of training\n\n"
               "Started by torchrun, Slurm's srun or Open MPI's mpirun each process is a rank and "
               "takes\na GPU; else ranks are threads of one process.\n\n"
               "RT_TIMEOUT=SECONDS of standing still, RT_JOIN=SECONDS for all to come, "
               "RT_COMM=threads,\nRT_PLACEMENT=any and RT_SHARE_GPU=1 in the environment are "
               "obeyed.\n");
    else
        printf("Ranks are threads of one process; under Open MPI's mpirun -np RANKS each is a "
               "process.\n\n"
               "RT_TIMEOUT=SECONDS, RT_BLAS=openblas|blis|onednn|none|PATH, "
               "RT_COMM=threads|mpi|trace\nand RT_MPI=PATH in the environment are obeyed.\n");
}

static int usage(const char *exe, const char *what, const char *arg)
{
    if (!another_speaks())
        fprintf(stderr, "%s: error: %s `%s`; --help lists the options\n", exe, what, arg);
    return RT_USAGE;
}

/* The value of option `name` at argv[*i], as --name VALUE or --name=VALUE. */
static const char *value_of(int argc, char **argv, int *i, const char *name)
{
    size_t n = strlen(name);
    if (strncmp(argv[*i], name, n) != 0)
        return NULL;
    if (argv[*i][n] == '=')
        return argv[*i] + n + 1;
    if (argv[*i][n] != 0 || *i + 1 >= argc)
        return NULL;
    return argv[++*i];
}

static int read_options(const RtProgram *p, int argc, char **argv, RtOptions *o,
                        const char **sets)
{
    enum { ANYWHERE = 5 };              // the others are for devices
    const struct { const char *name; const char **to; } files[] = {
        { "--load", &o->load }, { "--save", &o->save }, { "--log", &o->log },
        { "--trace", &o->trace }, { "--resume", &o->resume }, { "--root", &o->root },
        { "--rank", &o->rank }, { "--world", &o->world }, { "--profile", &o->profile },
    };
    size_t nfiles = o->device ? sizeof files / sizeof *files : ANYWHERE;
    for (int i = 1; i < argc; i++) {
        const char *v = NULL, *arg = argv[i];
        if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            help(p, o);
            return -1;
        }
        if (strcmp(arg, "-q") == 0) {
            o->quiet = 1;
            continue;
        }
        for (size_t k = 0; k < nfiles && !v; k++)
            if ((v = value_of(argc, argv, &i, files[k].name)))
                *files[k].to = v;
        if (v)
            continue;
        if ((v = value_of(argc, argv, &i, "--set"))) {
            sets[o->nsets++] = v;
        } else if ((v = value_of(argc, argv, &i, "--steps"))) {
            char *end;
            long long n = strtoll(v, &end, 10);
            if (end == v || *end || n < 0 || n == LLONG_MAX)
                return usage(o->exe, "--steps expects a whole number, found", v);
            o->steps = n;
        } else {
            static const char *const with_value[] = { "--load", "--save", "--log", "--trace",
                                                      "--set", "--steps", "--resume" };
            for (size_t k = 0; k < sizeof with_value / sizeof *with_value; k++)
                if (strcmp(arg, with_value[k]) == 0)
                    return usage(o->exe, "expected a value after", arg);
            for (size_t k = ANYWHERE; k < nfiles; k++)
                if (strcmp(arg, files[k].name) == 0)
                    return usage(o->exe, "expected a value after", arg);
            return usage(o->exe, *arg == '-' ? "unknown option" : "unexpected argument", arg);
        }
    }
    return RT_OK;
}

static int profile(const RtProgram *program, const RtOptions *o)
{
    if (!rt_is_foreign(o->profile, "profile"))
        return o->device->profile(program->head, o);
    if (!another_speaks())
        fprintf(stderr, "%s: error: --profile %s would overwrite a file that is no profile; name "
                "another, or remove it\n", o->exe, o->profile);
    return RT_USAGE;
}

static int main_of(const RtProgram *program, const RtDevice *device, int argc, char **argv)
{
    rt_guard_files();
    RtOptions o = { .steps = -1, .may_be_launched = true, .device = device,
                    .exe = argc > 0 ? argv[0] : "program" };
    const char **sets = rt_alloc((size_t)argc + 1, sizeof *sets);
    const char *slash = strrchr(o.exe, '/');
    if (slash)
        o.exe = slash + 1;
    o.sets = sets;
    int status = read_options(program, argc, argv, &o, sets);
    if (status == RT_OK)
        status = o.profile ? profile(program, &o) : rt_run(program, &o);
    free(sets);
    if (status < 0) {
        status = RT_OK;
        if (fflush(stdout) || ferror(stdout)) {
            fprintf(stderr, "%s: error: could not write to stdout\n", o.exe);
            status = RT_WORLD;
        }
    }
    return status;
}

int rt_main(const RtProgram *program, int argc, char **argv)
{
    return main_of(program, NULL, argc, argv);
}

int rt_device_main(const void *tables, size_t bytes, const RtDevice *device, int argc,
                   char **argv)
{
    int nstages;
    RtProgram *program = rt_program_read(tables, bytes, &nstages);
    if (!program) {
        fprintf(stderr, "%s: error: program.tables is damaged, or of another version; emit the "
                "program again\n", argc > 0 ? argv[0] : "program");
        return RT_BUG;
    }
    int status = main_of(program, device, argc, argv);
    free(program);
    return status;
}
