/*
 * emit_launch.c - how an emitted CUDA program is started: launch.sh on this machine or by
 * mpirun, launch.sbatch under Slurm, and the C code by which its processes find each other.
 */
#include <errno.h>
#include <sys/stat.h>

#include "commands.h"
#include "cuda.h"
#include "emit_cuda.h"

enum { USUAL_NODE = 8 };            // GPUs of a node, where no cluster is named

static const char shell_text[] =
    "#!/bin/sh\n"
    "# Starts the program: %s.\n"
    "#\n"
    "#   ./launch.sh [OPTION]...                      on this machine\n"
    "#   HOSTS=a:%d,b:%d ./launch.sh [OPTION]...        on several, by Open MPI's mpirun\n"
    "#\n"
    "# OPTIONs are those of ./program --help. PORT=N names another port for rank 0 to listen at.\n"
    "# torchrun --no-python and Slurm (launch.sbatch) start ./program as well.\n"
    "program=$(dirname \"$0\")/program\n"
    "ranks=%d\n"
    "port=${PORT:-$((20000 + $$ %% 10000))}\n\n"
    "[ -x \"$program\" ] || { echo \"$0: there is no $program; make builds it\" >&2; exit 4; }\n\n"
    "if [ -n \"$HOSTS\" ]; then          # fills one host after another, as the plan has them\n"
    "    exec mpirun -np \"$ranks\" --host \"$HOSTS\" --map-by slot --bind-to none \\\n"
    "        \"$program\" --root \"${HOSTS%%%%[:,]*}:$port\" \"$@\"\n"
    "fi\n\n"
    "rank=0 pids=''\n"
    "while [ $rank -lt $ranks ]; do\n"
    "    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \\\n"
    "        \"$program\" \"$@\" &\n"
    "    pids=\"$pids $!\" rank=$((rank + 1))\n"
    "done\n"
    "trap : INT                          # Ctrl-C reaches them all: the run ends after its step\n"
    "trap 'kill $pids 2> /dev/null' TERM\n"
    "status=0\n"
    "for pid in $pids; do\n"
    "    wait \"$pid\"; s=$?\n"
    "    while kill -0 \"$pid\" 2> /dev/null; do wait \"$pid\"; s=$?; done     # a signal came\n"
    "    [ $status != 0 ] || status=$s\n"
    "done\n"
    "exit $status\n";

static const char batch_text[] =
    "#!/bin/bash\n"
    "# Starts the program under Slurm: %s.\n"
    "#\n"
    "#   sbatch launch.sbatch [OPTION]...            in this folder\n"
    "#\n"
    "# OPTIONs are those of ./program --help. Partition, account and time are yours to add.\n"
    "#SBATCH --job-name=%s\n"
    "#SBATCH --nodes=%d\n"
    "#SBATCH --ntasks=%d\n"
    "#SBATCH --ntasks-per-node=%d\n"
    "#SBATCH --gpus-per-node=%d\n"
    "#SBATCH --distribution=block:block\n"
    "#SBATCH --exclusive\n"
    "#SBATCH --signal=USR1@120\n"
    "#SBATCH --output=%%x-%%j.log\n\n"
    "# Two minutes before the time is over USR1 ends the run behind a step, with a checkpoint.\n"
    "cd \"${SLURM_SUBMIT_DIR:-.}\" || exit 4\n"
    "srun --kill-on-bad-exit=1 ./program \"$@\"\n";

/* A file of the runtime, as it stands. */
static void copy_source(const char *dir, const char *name)
{
    const char *path = str_fmt("%s/runtime/%s", source_folder(), name);
    FILE *f = fopen(path, "rb");
    Text t = { 0 };
    char part[4096];
    size_t n;
    while (f && (n = fread(part, 1, sizeof part, f)) > 0)
        text_bytes(&t, part, n);
    if (f == NULL || ferror(f))
        die(EXIT_WORLD, "could not read %s: %s", path, strerror(errno));
    fclose(f);
    write_text(dir, name, t.at, t.n);
}

void emit_launch(const char *dir, const Compile *c)
{
    const Config *g = c->config;
    int ranks = plan_ranks(c->plan), node = USUAL_NODE;
    if (g->has_cluster && g->cluster.device >= 0)
        node = (int)g->cluster.per_node.v;
    node = node < ranks ? node : ranks;
    int nodes = (ranks + node - 1) / node;
    const char *all = ranks == 1 ? "one process with one GPU"
                    : str_fmt("%d processes, each a rank with a GPU of its own", ranks);
    Text shell = { 0 }, batch = { 0 };
    text_add(&shell, shell_text, all, node, node, ranks);
    text_add(&batch, batch_text, all, c->plan->model_name, nodes, ranks, node, node);
    write_text(dir, "launch.sh", shell.at, shell.n);
    write_text(dir, "launch.sbatch", batch.at, batch.n);
    chmod(str_fmt("%s/launch.sh", dir), 0755);
    copy_source(dir, "launch.c");
    copy_source(dir, "launch.h");
}
