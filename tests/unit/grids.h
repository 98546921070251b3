/*
 * grids.h - plans executed inside a test process: shared by test_grids.c and
 * test_fuzz.c. Kernels are cached by shape (KernelSpec.key) over all plans.
 */
#ifndef GRIDS_H
#define GRIDS_H

#include "options.h"
#include "trajectory.h"

/* Files and options as on the command line; settings end with NULL. */
const Config *grids_config(const char *file, const char *const *sets);
/* The passes that prices need: graph, mesh, operators. Errors fail the test. */
Plan *grids_open(const Config *config);
/* All passes, each verified; NULL: errors were reported. */
Plan *grids_compile(const Config *config, int workers);
/* Executes `steps` steps against the trajectory; rt_run's status. */
int grids_execute(const Plan *p, Comparison *c, int64_t steps);
/* The same, and keeps all parameters as they are after the last step, by parameter. */
int grids_execute_keeping(const Plan *p, Comparison *c, int64_t steps, double **params);
double **grids_arrays(const RefGraph *g);

#endif
