/*
 * verify_run.c - `teracube verify`: static checks, then steps on threads against
 * the reference, tensor by tensor (trajectory.c). Tokens are random, so no data
 * file is needed. What is too large to execute is shrunk first (verify_shrink.c).
 */
#include "commands.h"
#include "trajectory.h"

/* Executes the plan of `c`; the exit status. */
int verify_execute(Compile *c, const Emitted *e)
{
    int64_t steps = c->o->steps >= 0 ? c->o->steps : 1;
    const Trajectory *t = trajectory_new(c->config, steps);
    Comparison same = comparison_new(t, c->plan->is.precision);
    Kernels *k = make_kernels(c, e);
    const RtProgram *program = emitted_program(e, jit_kernels(k));
    RtOptions ro = comparison_options(&same, steps);
    int status = rt_run(program, &ro);
    if (status != EXIT_FINE)
        return status;
    if (steps > 0 && t->largest == 0)
        fprintf(stderr, "verify: no target counts in step 1, so its gradients say nothing\n");
    if (same.steps < steps)
        fprintf(stderr, "verify: %" PRId64 " of %s were done\n", same.steps,
                plural(steps, "step"));
    if (same.bad)
        fprintf(stderr, same.bad == 1 ? "verify: 1 value differs\n" : "verify: %d values differ\n",
                same.bad);
    else if (!c->o->quiet)
        printf("%s, %s: %s against the reference: losses and norms within %.1e, %s within "
               "%.1e%s; %.1e is allowed\n", c->plan->model_name, plan_line(c->plan),
               plural(steps, "step"), same.worst_scalar, plural(t->graph->nparams, "gradient"),
               same.worst, same.worst > 0 ? str_fmt(" (worst: %s)", same.worst_name) : "",
               same.tolerance);
    return same.bad || same.steps < steps ? EXIT_FAULT : EXIT_FINE;
}

double verify_flops(const Plan *p, const Emitted *e)
{
    double f = 0;
    int ranks = plan_ranks(p) / e->nstages;
    for (int r = 0; r < e->nstages; r++) {
        const StageTables *s = &e->stage[r];
        for (int i = 0; i < s->passes.n; i++)
            for (int k = s->passes.at[i].first; k < s->passes.at[i].last; k++)
                f += s->steps.at[k].flops * ranks;
    }
    return f;
}

int command_verify(Compile *c)
{
    use_this_machine(c);
    ((Config *)c->config)->any_room = !c->o->is_full;
    if (!compile_to(c, "memory"))
        return EXIT_INPUT;
    int64_t ninsts = 0;
    for (int r = 0; r < c->plan->is.stages; r++)
        ninsts += plan_stage(c->plan, r)->insts.n;
    if (!c->o->quiet)
        printf("static checks: fine after every pass, %s, %s\n", plural(ninsts, "instruction"),
               plural(plan_collectives(c->plan), "collective"));
    if (c->o->is_static)
        return EXIT_FINE;
    Emitted *e = emit_program(c->plan);
    if (diag_errors())
        return EXIT_INPUT;
    bool large = verify_flops(c->plan, e) > VERIFY_FLOPS || plan_ranks(c->plan) > VERIFY_RANKS;
    if (c->o->is_small || (large && !c->o->is_full))
        return verify_shrunk(c);
    return verify_execute(c, e);
}
