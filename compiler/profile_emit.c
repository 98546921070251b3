/*
 * profile_emit.c - `teracube profile CLUSTER --target cuda|cpu -o DIR`: a folder with a program
 * that measures the cluster, without a model, and writes the profile that the planner reads.
 *
 *     profile.cu     or profile.c: what is measured, and where
 *     Makefile       nvcc or cc; the rest of the program is templates/cuda/profile.cuh or
 *                    runtime/survey_cpu.c, and runtime/survey.c
 *     launch.sh      starts it here, or by srun or mpirun where there are several nodes
 *     launch.sbatch  for Slurm
 */
#include <sys/stat.h>

#include "cuda.h"
#include "diag.h"
#include "emit_cuda.h"

typedef struct { const Compile *c; const Cluster *k; const char *dir; int nodes, per; bool cuda; }
    Task;

static void write_program(const Task *t)
{
    Text x = { 0 };
    const char *name = t->k->name, *file = t->cuda ? "profile.cu" : "profile.c";
    text_add(&x, "/*\n * %s - measures cluster %s: %s of %s.\n *\n"
             " *     ./launch.sh            measures everything and writes %s.profile\n"
             " *     ./launch.sh --quick    a minute: names what is slow, writes nothing\n"
             " *\n * Written by `teracube profile %s --target %s`.\n */\n", file, name,
             plural(t->nodes, "node"), plural(t->per, "device"), name, t->c->o->in.files[0],
             t->cuda ? "cuda" : "cpu");
    text_add(&x, "#include \"%s\"\n\nint main(int argc, char **argv)\n{\n"
             "    SurveyTask task = %s;\n"
             "    task.cluster  = \"%s\";\n"
             "    task.nodes    = %d;\n"
             "    task.per_node = %d;           // ranks are numbered node by node\n"
             "    task.ports    = %d;           // to the network, of a node\n"
             "    task.out      = \"%s.profile\";\n", t->cuda ? "profile.cuh" : "survey.h",
             t->cuda ? "SurveyTask()" : "{ 0 }", name, t->nodes, t->per, (int)t->k->ports.v, name);
    if (t->c->o->is_quick)
        text_add(&x, "    task.quick    = true;\n");
    text_add(&x, "    return %s(task, argc, argv);\n}\n", t->cuda ? "profile_main" : "survey_cpu");
    write_text(t->dir, file, x.at, x.n);
}

static void write_makefile(const Task *t)
{
    const char *own = own_folder(), *slash = strrchr(own, '/'), *top = source_folder();
    const char *arch = cuda_arch(t->c), *sub = strlen(top) > strlen(own) + 3 ? "build/" : "";
    const char *lib = str_fmt("$(TERACUBE)/%s%s/libteracube_rt.a", sub, slash ? slash + 1 : own);
    Text x = { 0 };
    text_add(&x, "# where teracube was built: its runtime library and headers\n"
             "TERACUBE ?= %s\n", top);
    if (t->cuda)
        text_add(&x, "# make ARCH=sm_80: for another kind of GPU\n"
                 "ARCH     ?= %s\n"
                 "CUDA     ?= /usr/local/cuda\n"
                 "NVCC     ?= $(CUDA)/bin/nvcc\n\n"
                 "profile: profile.cu\n"
                 "\t$(NVCC) " CUDA_FLAGS " -arch=$(ARCH) -I$(TERACUBE)/templates/cuda "
                 "-I$(TERACUBE)/runtime -o $@ $< %s " CUDA_LIBRARIES "\n",
                 arch ? arch : CUDA_ARCH_DEFAULT, lib);
    else
        text_add(&x, "CC       ?= cc\n\nprofile: profile.c\n"
                 "\t$(CC) -std=c11 -O2 -I$(TERACUBE)/runtime -o $@ $< %s -lm -lpthread -ldl\n",
                 lib);
    text_add(&x, "\nclean:\n\trm -f profile\n\n.PHONY: clean\n");
    write_text(t->dir, "Makefile", x.at, x.n);
}

static void write_script(const Task *t, const char *name, const Text *x)
{
    write_text(t->dir, name, x->at, x->n);
    chmod(str_fmt("%s/%s", t->dir, name), 0755);
}

static void write_launch(const Task *t)
{
    const char *device = t->cuda ? "GPU" : "core";
    Text x = { 0 };
    text_add(&x, "#!/bin/sh\n# Measures cluster %s, %s of %s. Arguments go to the program: "
             "--quick, -o FILE.\ncd \"$(dirname \"$0\")\" || exit 1\n"
             "[ -e profile ] || make || exit 1\n", t->k->name, plural(t->nodes, "node"),
             plural(t->per, device));
    if (t->nodes == 1)
        text_add(&x, "# a thread for each %s; as processes: mpirun -np %d ./profile\n"
                 "exec ./profile \"$@\"\n", device, t->per);
    else {
        text_add(&x, "[ -n \"$SLURM_JOB_ID\" ] &&\n    exec srun -N %d --ntasks-per-node=%d "
                 "--kill-on-bad-exit=1 ./profile \"$@\"\n", t->nodes, t->per);
        text_add(&x, "# HOSTFILE names the hosts, `slots=%d` behind each\n"
                 "exec mpirun -np %d ${HOSTFILE:+--hostfile \"$HOSTFILE\"} --map-by "
                 "ppr:%d:node ./profile \"$@\"\n", t->per, t->nodes * t->per, t->per);
        if (t->cuda)
            text_add(&x, "# on every node: torchrun --nnodes %d --nproc-per-node %d "
                     "--rdzv-endpoint HOST:PORT --no-python ./profile\n", t->nodes, t->per);
    }
    write_script(t, "launch.sh", &x);
    x.n = 0;
    text_add(&x, "#!/bin/sh\n#SBATCH --job-name=%s-profile\n#SBATCH --nodes=%d\n"
             "#SBATCH --ntasks-per-node=%d\n%s#SBATCH --exclusive\n#SBATCH --time=00:15:00\n"
             "exec srun --kill-on-bad-exit=1 ./profile \"$@\"\n", t->k->name, t->nodes, t->per,
             t->cuda ? str_fmt("#SBATCH --gpus-per-node=%d\n", t->per) : "");
    write_script(t, "launch.sbatch", &x);
}

/* A program for the wrong kind of device measures nothing. */
static bool is_of_target(const Task *t)
{
    const Device *d = t->k->device < 0 ? NULL : &t->c->config->devices.at[t->k->device];
    bool gpu = d && arch_is_gpu(d->arch.v);
    if (d == NULL || d->arch.v == NULL || gpu == t->cuda)
        return true;
    diag_error(d->arch.loc, "profile-machine", "--target %s does not measure a device of `%s`",
               t->cuda ? "cuda" : "cpu", d->arch.v);
    diag_hint("take --target %s", t->cuda ? "cpu" : "cuda");
    return false;
}

int profile_emit(Compile *c)
{
    const Options *o = c->o;
    bool cuda = strcmp(o->target, "cuda") == 0;
    if (!cuda && strcmp(o->target, "cpu") != 0)
        die(EXIT_USAGE, "profile knows --target cuda and --target cpu, not %s", o->target);
    if (o->output == NULL)
        die(EXIT_USAGE, "profile --target needs -o DIR, the folder to write");
    if (o->in.nfiles == 0 || !c->config->has_cluster)
        die(EXIT_USAGE, "profile --target needs a file that describes the cluster%s",
            o->in.nfiles ? str_fmt("; %s does not", o->in.files[0]) : "");
    const Cluster *k = &c->config->cluster;
    Task task = { c, k, o->output, (int)k->nodes.v, (int)k->per_node.v, cuda }, *t = &task;
    const char *arch = cuda ? cuda_arch(c) : NULL;
    if (!is_of_target(t) || (arch && !arch_check(c, NULL, arch)))
        return EXIT_INPUT;
    folder_make(t->dir);
    write_program(t);
    write_makefile(t);
    write_launch(t);
    if (!o->quiet)
        printf("%s: %s; `make -C %s` builds it, %s/launch.sh measures cluster %s\n", t->dir,
               cuda ? "profile.cu" : "profile.c", t->dir, t->dir, k->name);
    return EXIT_FINE;
}
