/*
 * emit_llvm.c - kernels as machine code of this computer: one LLVM module, its
 * optimisation, and what becomes of it - code in memory (ORC) or an object file.
 *
 * The module is compiled once: to an object in memory that LLJIT links, or to an
 * object file. Kernels are explicit vectors already, so a light pipeline does;
 * most of the time goes to instruction selection.
 */
#include "llvm_emit.h"

#include <errno.h>
#include <unistd.h>

#include <llvm-c/Analysis.h>
#include <llvm-c/LLJIT.h>
#include <llvm-c/Support.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>
#include <llvm-c/Transforms/PassBuilder.h>

static const char pipeline[] =
    "function(early-cse<memssa>,instcombine<no-verify-fixpoint>,simplifycfg,"
    "loop-mssa(licm),early-cse<memssa>)";

const char *llvm_cpu, *llvm_features;       // NULL: this computer's

struct Kernels {
    L l;
    LLVMTargetMachineRef machine;
    LLVMOrcLLJITRef jit;
    int n;
    const char **name;
    bool optimised;
};

/* ---- the target -------------------------------------------------------------- */

static int register_bytes(const char *features)
{
    if (strstr(features, "+avx512f")) return 64;
    return strstr(features, "+avx2") ? 32 : 16;
}

/* Loop strength reduction costs a fifth of the time to generate code, and what it
 * would do to our loops (one index, scaled addresses) is not measurable. */
static void quicken(void)
{
    static bool done;
    if (done) return;
    done = true;
    LLVMParseCommandLineOptions(2, (const char *const[]){ "teracube", "-disable-lsr" }, NULL);
}

static void target_open(Kernels *k)
{
    L *l = &k->l;
    quicken();
    LLVMInitializeNativeTarget();
    LLVMInitializeNativeAsmPrinter();
    if (llvm_cpu) {
        l->cpu = str(llvm_cpu);
        l->features = str(llvm_features ? llvm_features : "");
    } else {
        char *cpu = LLVMGetHostCPUName(), *features = LLVMGetHostCPUFeatures();
        l->cpu = str(cpu);
        l->features = str(features);
        LLVMDisposeMessage(cpu);
        LLVMDisposeMessage(features);
    }
    l->reg_bytes = register_bytes(l->features);
    l->tile_rows = l->reg_bytes == 64 ? 8 : l->reg_bytes == 32 ? 6 : 4;

    char *triple = LLVMGetDefaultTargetTriple(), *error = NULL;
    LLVMTargetRef target;
    if (LLVMGetTargetFromTriple(triple, &target, &error)) bug("LLVM: %s", error);
    k->machine = LLVMCreateTargetMachine(target, triple, l->cpu, l->features,
        LLVMCodeGenLevelDefault, LLVMRelocPIC, LLVMCodeModelDefault);
    LLVMSetTarget(l->mod, triple);
    LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(k->machine);
    LLVMSetModuleDataLayout(l->mod, layout);
    LLVMDisposeTargetData(layout);
    LLVMDisposeMessage(triple);
}

static void module_open(L *l, const char *name)
{
    l->ctx = LLVMContextCreate();
    l->mod = LLVMModuleCreateWithNameInContext(name, l->ctx);
    l->b = LLVMCreateBuilderInContext(l->ctx);
    l->i1 = LLVMInt1TypeInContext(l->ctx);
    l->i8 = LLVMInt8TypeInContext(l->ctx);
    l->i16 = LLVMInt16TypeInContext(l->ctx);
    l->i32 = LLVMInt32TypeInContext(l->ctx);
    l->i64 = LLVMInt64TypeInContext(l->ctx);
    l->f32 = LLVMFloatTypeInContext(l->ctx);
    l->f64 = LLVMDoubleTypeInContext(l->ctx);
    l->bf16 = LLVMBFloatTypeInContext(l->ctx);
    l->ptr = LLVMPointerTypeInContext(l->ctx, 0);
    l->none = LLVMVoidTypeInContext(l->ctx);
}

/* ---- the module -------------------------------------------------------------- */

/* Bit i: argument i may be bf16. */
static const uint32_t can_be_bf16[K_KINDS] = {
    [K_ATTN] = 0xf, [K_ATTN_DX] = 0x6f,     // not lse, dk, dv
    [K_ROPE] = 3, [K_EMBED] = 3, [K_EMBED_DW] = 3, [K_CE_STAT] = 1, [K_CE] = 1, [K_NORM] = 1,
    [K_ADAMW] = 0xf, [K_SGD] = 7,
};

static void emit_one(L *l, const KernelSpec *s)
{
    if (s->bf16 & ~can_be_bf16[s->kind] || (s->is_double && (s->bf16 || s->copy)))
        bug("kernel %s: arguments %#x in bf16", s->name, (unsigned)s->bf16);
    switch (s->kind) {
    case K_ROWS:       emit_rows(l, s); break;
    case K_ATTN:       emit_attn(l, s); break;
    case K_ATTN_DX:    emit_attn_dx(l, s); break;
    case K_ROPE:       emit_rope(l, s); break;
    case K_ROPE_TABLE: emit_rope_table(l, s); break;
    case K_EMBED:      emit_embed(l, s); break;
    case K_EMBED_DW:   emit_embed_dw(l, s); break;
    case K_CE_STAT:    emit_ce_stat(l, s); break;
    case K_CE:         emit_ce(l, s); break;
    case K_NORM:       emit_norm(l, s); break;
    case K_ADAMW:
    case K_SGD:        emit_update(l, s); break;
    case K_KINDS:      bug("kernel %s has no kind", s->name);
    }
}

Kernels *emit_llvm(const KernelSpec *spec, int n, const char *module_name, FILE *dump)
{
    Kernels *k = NEW(Kernels);
    k->n = n;
    k->name = NEWN(const char *, n + 1);
    module_open(&k->l, module_name);
    target_open(k);
    for (int i = 0; i < n; i++) {
        k->name[i] = str(spec[i].name);
        emit_one(&k->l, &spec[i]);
    }
    if (dump) {
        char *text = LLVMPrintModuleToString(k->l.mod);
        fputs(text, dump);
        LLVMDisposeMessage(text);
    }
    char *error = NULL;
    if (LLVMVerifyModule(k->l.mod, LLVMReturnStatusAction, &error))
        bug("LLVM does not accept module %s: %s", module_name, error);
    LLVMDisposeMessage(error);
    return k;
}

static void fail(LLVMErrorRef e, const char *doing)
{
    if (e) bug("LLVM, %s: %s", doing, LLVMGetErrorMessage(e));
}

static void optimise(Kernels *k)
{
    if (k->optimised) return;
    k->optimised = true;
    LLVMPassBuilderOptionsRef o = LLVMCreatePassBuilderOptions();
    fail(LLVMRunPasses(k->l.mod, pipeline, k->machine, o), "optimising");
    LLVMDisposePassBuilderOptions(o);
}

static LLVMMemoryBufferRef compile(Kernels *k)
{
    LLVMMemoryBufferRef object = NULL;
    char *error = NULL;
    optimise(k);
    if (LLVMTargetMachineEmitToMemoryBuffer(k->machine, k->l.mod, LLVMObjectFile, &error,
                                            &object))
        bug("LLVM, generating code: %s", error);
    return object;
}

/* ---- code in memory ---------------------------------------------------------- */

/* The functions of libm that kernels call, wherever the process has them. */
static void define_libm(LLVMOrcLLJITRef jit)
{
    static const struct { const char *name; void *at; } libm[] = {
#define M(name) { #name, (void *)(uintptr_t)name }
        M(erf), M(log), M(sin), M(cos), M(pow), M(erff), M(logf), M(sinf), M(cosf), M(powf),
        M(memset), M(memcpy),
#undef M
    };
    enum { N = sizeof libm / sizeof *libm };
    LLVMOrcCSymbolMapPair pair[N];
    for (int i = 0; i < N; i++) {
        pair[i].Name = LLVMOrcLLJITMangleAndIntern(jit, libm[i].name);
        pair[i].Sym.Address = (LLVMOrcExecutorAddress)(uintptr_t)libm[i].at;
        pair[i].Sym.Flags.GenericFlags = LLVMJITSymbolGenericFlagsExported;
        pair[i].Sym.Flags.TargetFlags = 0;
    }
    fail(LLVMOrcJITDylibDefine(LLVMOrcLLJITGetMainJITDylib(jit),
                               LLVMOrcAbsoluteSymbols(pair, N)), "defining libm");
}

void **kernels_jit(Kernels *k)
{
    void **at = NEWN(void *, k->n + 1);
    if (!k->jit) {
        fail(LLVMOrcCreateLLJIT(&k->jit, NULL), "starting ORC");
        define_libm(k->jit);
        fail(LLVMOrcLLJITAddObjectFile(k->jit, LLVMOrcLLJITGetMainJITDylib(k->jit),
                                       compile(k)), "adding the object");
    }
    for (int i = 0; i < k->n; i++) {
        LLVMOrcExecutorAddress a;
        fail(LLVMOrcLLJITLookup(k->jit, &a, k->name[i]), k->name[i]);
        at[i] = (void *)(uintptr_t)a;
    }
    return at;
}

/* ---- an object file ---------------------------------------------------------- */

static void add_constant(L *l, const char *name, Val value)
{
    Val g = LLVMAddGlobal(l->mod, LLVMTypeOf(value), name);
    LLVMSetInitializer(g, value);
    LLVMSetGlobalConstant(g, 1);
    LLVMSetAlignment(g, 64);
}

static int write_whole(const char *path, const char *data, size_t n)
{
    const char *temp = str_fmt("%s.%ld.tmp", path, (long)getpid());
    FILE *f = fopen(temp, "wb");
    if (!f) return -1;
    bool good = fwrite(data, 1, n, f) == n;
    good = !fclose(f) && good;
    if (good && !rename(temp, path)) return 0;
    int why = errno;
    remove(temp);
    errno = why;
    return -1;
}

int kernels_object(Kernels *k, const char *path, int nblobs, const char *const *blob_name,
                   const void *const *blob, const size_t *blob_bytes)
{
    L *l = &k->l;
    Val *fn = NEWN(Val, k->n + 1);
    for (int i = 0; i < k->n; i++) fn[i] = LLVMGetNamedFunction(l->mod, k->name[i]);
    add_constant(l, "rt_kernels", LLVMConstArray2(l->ptr, fn, (uint64_t)k->n));
    for (int i = 0; i < nblobs; i++)
        add_constant(l, blob_name[i], LLVMConstStringInContext2(l->ctx, blob[i], blob_bytes[i], 1));
    LLVMMemoryBufferRef object = compile(k);
    int status = write_whole(path, LLVMGetBufferStart(object), LLVMGetBufferSize(object));
    LLVMDisposeMemoryBuffer(object);
    return status;
}

void kernels_free(Kernels *k)
{
    if (k->jit) fail(LLVMOrcDisposeLLJIT(k->jit), "ending ORC");
    LLVMDisposeBuilder(k->l.b);
    LLVMDisposeModule(k->l.mod);
    LLVMDisposeTargetMachine(k->machine);
    LLVMContextDispose(k->l.ctx);
}

const LlvmApi llvm_api = { emit_llvm, kernels_jit, kernels_object, kernels_free };
