/*
 * llvm_load.c - opens the part that makes machine code when a command needs it.
 *
 * libLLVM is 130 MB and takes longer to load than a plan takes to make, so
 * emit_llvm*.c stand in a library of their own beside the executable
 * (teracube_llvm.so), and `check`, `plan` and static checks never open it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>

#include "kernel.h"

const char *own_folder(void)
{
    char exe[4096];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0)
        die(EXIT_WORLD, "could not find this executable's folder: %s", strerror(errno));
    exe[n] = 0;
    *strrchr(exe, '/') = 0;
    return str(exe);
}

const LlvmApi *llvm_load(const char *command)
{
    static const LlvmApi *api;
    if (api)
        return api;
    const char *path = str_fmt("%s/teracube_llvm.so", own_folder());
    if (access(path, R_OK) != 0)
        die(EXIT_WORLD, "%s makes machine code with %s, which is not there; where teracube was "
            "built without LLVM, install llvm-19-dev and build again", command, path);
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (lib)
        api = dlsym(lib, "llvm_api");
    if (api == NULL)
        die(EXIT_WORLD, "could not load %s: %s", path, dlerror());
    return api;
}
