#include "commands.h"
int run_reference(Compile *c) { (void)c; return EXIT_FAULT; }
