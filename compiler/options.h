/*
 * options.h - what the command line asked for; read by main.c and the commands.
 */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "predict.h"

typedef struct { int files, sets; } Place;      // so many of each stand before it

typedef struct {
    const char *command;
    Inputs in;                      // files, --set, --plan, --cluster
    /* diff: where each `--` stood among files and settings, at most 3 kept; the first file. */
    int nsplits; Place split[3], first;
    bool json, schedule, quiet, verbose, time, reference, help;
    bool turns_only, blocking;       // plan, simulate: see predict.h
    VEC(const char *) slow; const char *network, *link;     // simulate: whatif.c
    bool is_small, is_full, is_static;      // verify
    bool is_quick;                  // profile
    const char *dump, *stop, *explain, *target, *arch, *output;
    const char *load, *save, *log, *trace, *resume;
    int top, emit; const char *budget, *objective, *write, *results, *why_not;      // tune
    int64_t steps;                  // -1: as the file says
    int threads;                    // 0: share the cores
} Options;

typedef struct { const Options *o; const Config *config; Plan *plan; double start;
    int workers;                    // rows of scratch of a rank's sums; 0: by the cores
    bool on_paper;                  // plan: stop before layouts
    bool priced;                    // the step is predicted too, where there is a machine ..
    bool assumes;                   // .. and without one by this machine's assumed prices
} Compile;

/* The files of `in` as settings. NULL: errors were reported. */
const Config *config_of(const Options *o, const Inputs *in);

/* Runs the passes up to `last` (a name of main.c's table). false: errors were
 * reported. */
bool compile_to(Compile *c, const char *last);

/* A plan and its prediction (c->plan->pipeline): laid out where this version can, else on
 * paper. false: errors were reported. */
bool compile_priced(Compile *c);

/* simulate on a machine that is slower somewhere, beside the one given; whatif.c */
bool whatif_asked(const Options *o);
void whatif_print(Compile *c, const Pipeline *q, FILE *f);

/* profile --target cuda|cpu: a program that measures the cluster; profile_emit.c */
int profile_emit(Compile *c);

/* The commands; each returns the exit status. */
int command_check(Compile *c);
int command_plan(Compile *c);
int command_simulate(Compile *c);
int command_verify(Compile *c);     // verify_run.c
int command_run(Compile *c);        // run.c
int command_build(Compile *c);      // run.c
int command_emit(Compile *c);       // emit_files.c
int command_diff(Compile *c);       // diff.c
int command_compare(Compile *c);    // compare.c
int command_tune(Compile *c);       // tune_run.c
int tune_explain(Compile *c);       // plan --explain tune
int command_profile(Compile *c);    // profile.c

#endif
