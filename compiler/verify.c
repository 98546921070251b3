#include "plan.h"
int verify_plan(const Plan *p, const char *after, FILE *f){(void)p;(void)after;(void)f;return 0;}
#include "options.h"
#include "commands.h"
int command_verify(Compile *c){(void)c;return 0;}
int run_reference(Compile *c){(void)c;return 0;}
