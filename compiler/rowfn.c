/*
 * rowfn.c - elementwise arithmetic, row reductions, and calls of fn.
 *
 * Numbers are folded. Operands broadcast from width 1; inside a fn also from
 * one number per part, which is what a reduction gives. There a reduction of
 * something that is the same all over the part (a number, another reduction)
 * means what it says: sum is n times it, mean and rowmax are it, var is 0.
 * mean(x) is SUM times 1/n, so that a sum and a mean share their reduction.
 */
#include "graph.h"

/* ---- numbers ---------------------------------------------------------- */

static double fold_unary(OpKind kind, double x)
{
    switch (kind) {
    case OP_NEG:     return -x;
    case OP_EXP:     return exp(x);
    case OP_LOG:     return log(x);
    case OP_SQRT:    return sqrt(x);
    case OP_RSQRT:   return 1 / sqrt(x);
    case OP_TANH:    return tanh(x);
    case OP_SIGMOID: return 1 / (1 + exp(-x));
    case OP_ERF:     return erf(x);
    case OP_ABS:     return fabs(x);
    case OP_SIN:     return sin(x);
    case OP_COS:     return cos(x);
    default:         bug("fold of %s", op_word[kind]);
    }
}

static double fold_binary(OpKind kind, double a, double b)
{
    switch (kind) {
    case OP_ADD: return a + b;
    case OP_SUB: return a - b;
    case OP_MUL: return a * b;
    case OP_DIV: return a / b;
    case OP_MAX: return a >= b ? a : b;
    case OP_MIN: return a <= b ? a : b;
    default:     bug("fold of %s", op_word[kind]);
    }
}

static Val folded(Graph *g, double v, const char *word, Loc loc)
{
    if (isfinite(v))
        return val_number(v, loc);
    graph_error(g, loc, "number", "%s of these numbers is %s", word,
                isnan(v) ? "undefined" : "infinite");
    return val_none(loc);
}

/* ---- operands --------------------------------------------------------- */

/* Can v take part in arithmetic? Reports and says no for ids, the loss, lists .. */
static bool operand(Graph *g, const Val *v)
{
    if (v->kind == V_NONE)
        return false;
    if (v->kind == V_NUMBER || graph_is_kind(g, v, T_ROWS) || graph_is_kind(g, v, T_VECTOR))
        return true;
    if (graph_error(g, v->loc, "type", "arithmetic needs a number or a tensor, not %s",
                    graph_kind(g, v)) && graph_is_kind(g, v, T_IDS))
        diag_hint("embed(%s, ...) makes a tensor of them", g->p->tensors.at[v->tensor].name);
    return false;
}

/* Width at which v is read; a learned vector is as wide as the row. */
static int64_t span(const Graph *g, const Val *v)
{
    if (v->kind == V_NUMBER)
        return 1;
    if (graph_is_kind(g, v, T_VECTOR))
        return g->row ? g->row->width : 1;
    return g->p->tensors.at[v->tensor].width;
}

static TensorId as_tensor(Graph *g, const Val *v)
{
    return v->kind == V_NUMBER ? rowop_number(g->p, v->number) : v->tensor;
}

/* The operator's name: the call of the fn it stands in, or its own. */
static const char *row_name(Graph *g, OpKind kind)
{
    return g->row ? g->row->name : model_name(g, NULL, op_word[kind]);
}

static Loc row_loc(const Graph *g, Loc loc)
{
    const RowFrame *f = g->row;
    while (f && f->up)
        f = f->up;
    return f ? f->loc : loc;    // the user's call, not the prelude's text
}

static Val emit(Graph *g, OpKind kind, TensorId a, TensorId b, int64_t width, RowAttr attr,
                Loc loc)
{
    OpAt at = graph_at(g, row_name(g, kind), row_loc(g, loc));
    return val_tensor(rowop(g->p, &at, kind, a, b, width, attr), loc);
}

static void note_width(const Graph *g, const Val *v)
{
    const Tensor *t = &g->p->tensors.at[v->tensor];
    diag_note(t->loc, "width %" PRId64 " comes from here", t->width);
}

static bool fits(const Graph *g, int64_t w, int64_t width)
{
    return w == width || w == 1 || (g->row && w == g->row->parts);
}

/* ---- operators -------------------------------------------------------- */

Val row_unary(Graph *g, OpKind kind, Val a, Loc loc)
{
    if (!operand(g, &a))
        return val_none(loc);
    if (a.kind == V_NUMBER)
        return folded(g, fold_unary(kind, a.number), op_word[kind], loc);
    return emit(g, kind, a.tensor, NONE, span(g, &a), (RowAttr){ 0 }, loc);
}

/* x + 0, x * 1 and the like are x itself. */
static bool is_neutral(OpKind kind, const Val *a, const Val *b, const Val **same)
{
    bool add = kind == OP_ADD, mul = kind == OP_MUL;
    *same = a;
    if (b->kind == V_NUMBER)
        return b->number == (mul || kind == OP_DIV ? 1 : 0) && kind != OP_MAX && kind != OP_MIN;
    *same = b;
    return a->kind == V_NUMBER && ((add && a->number == 0) || (mul && a->number == 1));
}

Val row_binary(Graph *g, OpKind kind, Val a, Val b, Loc loc)
{
    bool fine = operand(g, &a);
    if (!operand(g, &b) || !fine)
        return val_none(loc);
    if (a.kind == V_NUMBER && b.kind == V_NUMBER)
        return folded(g, fold_binary(kind, a.number, b.number),
                      kind == OP_DIV ? "the quotient" : op_word[kind], loc);
    const Val *same;
    if (is_neutral(kind, &a, &b, &same))
        return val_tensor(same->tensor, loc);
    int64_t wa = span(g, &a), wb = span(g, &b), width = wa > wb ? wa : wb;
    if (!fits(g, wa, width) || !fits(g, wb, width)) {
        if (graph_error(g, loc, "widths-match", "widths %" PRId64 " and %" PRId64
                        " do not match", wa, wb)) {
            note_width(g, &a);
            note_width(g, &b);
        }
        return val_none(loc);
    }
    return emit(g, kind, as_tensor(g, &a), as_tensor(g, &b), width, (RowAttr){ 0 }, loc);
}

Val row_power(Graph *g, Val a, Val b, Loc loc)
{
    bool fine = operand(g, &a);
    if (!operand(g, &b) || !fine)
        return val_none(loc);
    if (b.kind != V_NUMBER) {
        if (graph_error(g, b.loc, "type", "an exponent must be a number, not %s",
                        graph_kind(g, &b)))
            diag_hint("a ^ b is exp(b * log(a)) where a is positive");
        return val_none(loc);
    }
    if (a.kind == V_NUMBER)
        return folded(g, pow(a.number, b.number), "power", loc);
    if (b.number == 1)
        return a;
    if (b.number == 2)
        return emit(g, OP_MUL, a.tensor, a.tensor, span(g, &a), (RowAttr){ 0 }, loc);
    return emit(g, OP_POW, a.tensor, NONE, span(g, &a), (RowAttr){ .c = b.number }, loc);
}

/* ---- reductions ------------------------------------------------------- */

static bool reducible(Graph *g, const char *word, const Val *v, Loc loc)
{
    if (!g->row) {
        if (graph_error(g, loc, "type", "%s stands only inside a fn", word))
            diag_hint("fn my(x) = %s(x) makes it a row program", word);
        return false;
    }
    if (g->row->width == 0) {
        if (graph_error(g, row_loc(g, loc), "type", "fn %s needs a tensor: it takes the %s of a "
                        "row", g->row->fn->name, word))
            diag_note(loc, "the %s stands here", word);
        return false;
    }
    return operand(g, v);
}

typedef enum { RED_SUM, RED_MEAN, RED_VAR, RED_MAX } Reduction;

static Val reduce(Graph *g, Reduction what, const char *word, Val v, Loc loc)
{
    if (v.kind == V_NONE || !reducible(g, word, &v, loc))
        return val_none(loc);
    int parts = g->row->parts;
    double n = (double)(g->row->width / parts);
    if (graph_is_kind(g, &v, T_VECTOR))
        v = emit(g, OP_SPREAD, v.tensor, g->row->like, g->row->width, (RowAttr){ 0 }, loc);
    if (span(g, &v) == parts || span(g, &v) == 1) {     // the same all over the part
        if (what == RED_VAR)
            return val_number(0, loc);
        return what == RED_SUM ? row_binary(g, OP_MUL, v, val_number(n, loc), loc) : v;
    }
    OpKind kind = what == RED_VAR ? OP_VAR : what == RED_MAX ? OP_ROWMAX : OP_SUM;
    Val r = emit(g, kind, v.tensor, NONE, parts, (RowAttr){ .parts = parts }, loc);
    return what == RED_MEAN ? row_binary(g, OP_MUL, r, val_number(1 / n, loc), loc) : r;
}

/* ---- built-in functions ----------------------------------------------- */

typedef enum { F_UNARY, F_BINARY, F_REDUCE, F_FLOOR, F_CEIL } FuncKind;
static const struct { const char *name; FuncKind kind; int op; } funcs[] = {
    { "exp", F_UNARY, OP_EXP }, { "log", F_UNARY, OP_LOG }, { "sqrt", F_UNARY, OP_SQRT },
    { "rsqrt", F_UNARY, OP_RSQRT }, { "tanh", F_UNARY, OP_TANH },
    { "sigmoid", F_UNARY, OP_SIGMOID }, { "erf", F_UNARY, OP_ERF }, { "abs", F_UNARY, OP_ABS },
    { "sin", F_UNARY, OP_SIN }, { "cos", F_UNARY, OP_COS },
    { "maximum", F_BINARY, OP_MAX }, { "minimum", F_BINARY, OP_MIN },
    { "sum", F_REDUCE, RED_SUM }, { "mean", F_REDUCE, RED_MEAN }, { "var", F_REDUCE, RED_VAR },
    { "rowmax", F_REDUCE, RED_MAX },
    { "floor", F_FLOOR, 0 }, { "ceil", F_CEIL, 0 },
};
enum { NFUNCS = sizeof funcs / sizeof funcs[0] };

const char *const row_builtin_names[] = {
    "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "abs", "sin", "cos", "maximum",
    "minimum", "sum", "mean", "var", "rowmax", "floor", "ceil", NULL
};

static Val round_number(Graph *g, FuncKind kind, Val v, const char *word, Loc loc)
{
    if (v.kind == V_NUMBER)
        return val_number(kind == F_FLOOR ? floor(v.number) : ceil(v.number), loc);
    if (v.kind != V_NONE)
        graph_error(g, v.loc, "type", "%s needs a number, not %s", word, graph_kind(g, &v));
    return val_none(loc);
}

bool row_builtin(Graph *g, const Expr *call, Val *result)
{
    int f = 0;
    while (f < NFUNCS && strcmp(funcs[f].name, call->text) != 0)
        f++;
    if (f == NFUNCS)
        return false;
    int want = funcs[f].kind == F_BINARY ? 2 : 1;
    *result = val_none(call->loc);
    Val v[2] = { *result, *result };
    for (int i = 0; i < call->args.n; i++) {
        const Arg *arg = &call->args.at[i];
        if (arg->name) {
            graph_error(g, arg->name_loc, "unknown-argument", "%s has no argument `%s`",
                        call->text, arg->name);
            return true;
        }
        Val got = graph_eval(g, arg->value);
        if (i < 2)
            v[i] = got;
    }
    if (call->args.n != want) {
        graph_error(g, call->loc, "arguments", "%s takes %s, %d given", call->text,
                    plural(want, "argument"), call->args.n);
        return true;
    }
    if (funcs[f].kind == F_UNARY)
        *result = row_unary(g, (OpKind)funcs[f].op, v[0], call->loc);
    else if (funcs[f].kind == F_BINARY)
        *result = row_binary(g, (OpKind)funcs[f].op, v[0], v[1], call->loc);
    else if (funcs[f].kind == F_REDUCE)
        *result = reduce(g, (Reduction)funcs[f].op, call->text, v[0], call->loc);
    else
        *result = round_number(g, funcs[f].kind, v[0], call->text, call->loc);
    return true;
}

/* ---- calls of fn ------------------------------------------------------ */

/* The call's arguments, by parameter of the fn, and its own two keywords. */
typedef struct { const Expr **value; const Expr *heads, *name; } FnArgs;

static int fn_param(const Args *params, const char *name)
{
    for (int i = 0; i < params->n; i++)
        if (params->at[i].name == name)
            return i;
    return NONE;
}

static void fn_unknown(Graph *g, const Fn *fn, const Arg *arg)
{
    if (fn_param(&fn->vectors, arg->name) != NONE) {
        if (graph_error(g, arg->name_loc, "unknown-argument",
                        "`%s` of %s is learned and cannot be given", arg->name, fn->name))
            diag_note(fn->loc, "%s is defined here", fn->name);
        return;
    }
    if (!graph_error(g, arg->name_loc, "unknown-argument", "%s has no argument `%s`", fn->name,
                     arg->name))
        return;
    const char **names = NEWN(const char *, fn->params.n + 2);
    for (int i = 0; i < fn->params.n; i++)
        names[i] = fn->params.at[i].name;
    names[fn->params.n] = "heads";
    names[fn->params.n + 1] = "name";
    graph_suggest(arg->name, names, fn->params.n + 2);
}

/* One argument too many, or one given by place and by name. */
static void fn_excess(Graph *g, const Expr *call, const Fn *fn, const Arg *arg, int k)
{
    bool said = k < fn->params.n
        ? k < call->args.n && !call->args.at[k].name        // else the parser said so
            && graph_error(g, arg->value->loc, "arguments", "`%s` is given twice", arg->name)
        : graph_error(g, arg->value->loc, "arguments", "%s takes %s, %d given", fn->name,
                      plural(fn->params.n, "argument"), call->args.n);
    if (said)
        diag_note(fn->loc, "%s is defined here", fn->name);
}

static bool fn_bind(Graph *g, const Expr *call, const Fn *fn, FnArgs *args)
{
    bool fine = true;
    args->value = NEWN(const Expr *, fn->params.n + 1);
    for (int i = 0; i < call->args.n; i++) {
        const Arg *arg = &call->args.at[i];
        int k = arg->name ? fn_param(&fn->params, arg->name) : i;
        if (arg->name && k == NONE && strcmp(arg->name, "heads") == 0) {
            args->heads = arg->value;
        } else if (arg->name && k == NONE && strcmp(arg->name, "name") == 0) {
            args->name = arg->value;
        } else if (k == NONE) {
            fn_unknown(g, fn, arg);
            fine = false;
        } else if (k >= fn->params.n || args->value[k]) {
            fn_excess(g, call, fn, arg, k);
            return false;
        } else {
            args->value[k] = arg->value;
        }
    }
    for (int k = 0; k < fn->params.n; k++) {
        if (args->value[k] || fn->params.at[k].value)
            continue;
        if (graph_error(g, call->loc, "arguments", "%s needs its argument `%s`", fn->name,
                        fn->params.at[k].name))
            diag_note(fn->loc, "%s is defined here", fn->name);
        fine = false;
    }
    return fine;
}

/* An argument must be a number or rows; a vector of the calling fn is spread first. */
static bool fn_argument(Graph *g, Val *v)
{
    if (!operand(g, v))
        return false;
    if (graph_is_kind(g, v, T_VECTOR))
        *v = emit(g, OP_SPREAD, v->tensor, g->row->like, g->row->width, (RowAttr){ 0 }, v->loc);
    return true;
}

/*
 * The row of the call: the widest argument, others as wide or of width 1. A fn
 * called by another works on the other's parts; arguments that are all narrow
 * (one number per part) make rows of one number.
 */
static bool fn_width(Graph *g, const Expr *call, const Val *v, int n, RowFrame *f)
{
    for (int i = 0; i < n; i++)
        if (v[i].kind == V_TENSOR && span(g, &v[i]) > f->width) {
            f->width = span(g, &v[i]);
            f->like = v[i].tensor;
        }
    for (int i = 0; i < n; i++) {
        if (v[i].kind != V_TENSOR || fits(g, span(g, &v[i]), f->width))
            continue;
        if (graph_error(g, v[i].loc, "widths-match", "the arguments of %s have widths %" PRId64
                        " and %" PRId64, call->text, f->width, span(g, &v[i]))) {
            diag_note(g->p->tensors.at[f->like].loc, "width %" PRId64 " comes from here",
                      f->width);
            note_width(g, &v[i]);
        }
        return false;
    }
    return true;
}

static bool fn_parts(Graph *g, const Expr *heads, RowFrame *f)
{
    int64_t parts = 1;
    if (g->row) {
        if (heads) {
            graph_error(g, heads->loc, "arguments", "heads= cannot stand inside a fn");
            return false;
        }
        f->parts = f->width == 1 ? 1 : g->row->parts;
        return true;
    }
    if (heads && !graph_count(g, heads, "heads", &parts))
        return false;
    f->parts = (int)parts;
    if (!heads || (f->width > 0 && f->width % parts == 0 && parts <= f->width))
        return true;
    if (graph_error(g, heads->loc, "heads-match", "a row of width %" PRId64
                    " does not split into %s", f->width, plural(parts, "head"))
        && f->width > 0)
        diag_note(g->p->tensors.at[f->like].loc, "width %" PRId64 " comes from here", f->width);
    return false;
}

static bool fn_vectors(Graph *g, const Fn *fn, const RowFrame *f)
{
    for (int i = 0; i < fn->vectors.n; i++) {
        const Arg *v = &fn->vectors.at[i];
        if (f->width == 0) {
            if (graph_error(g, f->loc, "type", "fn %s needs a tensor: it has learned vectors",
                            fn->name))
                diag_note(v->name_loc, "`%s` is learned", v->name);
            return false;
        }
        Param like = { .kind = PARAM_VECTOR, .name = model_join(f->name, v->name),
                       .loc = row_loc(g, f->loc), .rows = 1, .width = f->width / f->parts,
                       .init = INIT_CONSTANT };
        if (v->value && !model_init(g, v->value, &like.init, &like.init_a))
            return false;
        ParamId id = model_param(g, &like);
        if (id == NONE)
            return false;
        scope_put(g->scope, v->name, val_tensor(g->p->params.at[id].tensor, v->name_loc),
                  v->name_loc);
    }
    return true;
}

static bool fn_recursion(Graph *g, const Expr *call, const Fn *fn)
{
    for (const RowFrame *f = g->row; f; f = f->up) {
        if (f->fn != fn)
            continue;
        if (graph_error(g, call->loc, "recursion", "fn %s calls itself", fn->name))
            diag_note(fn->loc, "%s is defined here", fn->name);
        return true;
    }
    return false;
}

/* What a fn gives back: rows or a number. */
static Val fn_result(Graph *g, Val v, Loc loc)
{
    if (!operand(g, &v))
        return val_none(loc);
    if (graph_is_kind(g, &v, T_VECTOR))
        v = emit(g, OP_SPREAD, v.tensor, g->row->like, g->row->width, (RowAttr){ 0 }, loc);
    v.loc = loc;
    return v;
}

/* Evaluates the body in its own scope: parameters, vectors, nothing else. */
static Val fn_body(Graph *g, const Expr *call, const Fn *fn, const Val *v, RowFrame *frame)
{
    Scope *outer = g->scope, *inner = NEW(Scope);
    Val result = val_none(call->loc);
    frame->up = g->row;
    g->row = frame;
    g->scope = inner;
    for (int k = 0; k < fn->params.n; k++)
        scope_put(inner, fn->params.at[k].name, v[k], v[k].loc);
    if (fn_vectors(g, fn, frame))
        result = fn_result(g, graph_eval(g, fn->body), call->loc);
    g->scope = outer;
    g->row = frame->up;
    return result;
}

/* Default of a parameter: an expression of the parameters before it. */
static Val fn_default(Graph *g, const Fn *fn, const Val *v, int k)
{
    Scope *outer = g->scope, *inner = NEW(Scope);
    for (int i = 0; i < k; i++)
        scope_put(inner, fn->params.at[i].name, v[i], v[i].loc);
    g->scope = inner;
    RowFrame plain = { .fn = fn, .name = fn->name, .parts = 1, .like = NONE, .up = g->row };
    g->row = &plain;
    Val d = graph_eval(g, fn->params.at[k].value);
    g->row = plain.up;
    g->scope = outer;
    if (d.kind != V_NONE && d.kind != V_NUMBER) {
        graph_error(g, fn->params.at[k].value->loc, "type",
                    "the default of `%s` must be a number, not %s", fn->params.at[k].name,
                    graph_kind(g, &d));
        return val_none(d.loc);
    }
    return d;
}

Val row_fn(Graph *g, const Expr *call, const Fn *fn)
{
    FnArgs args = { 0 };
    RowFrame frame = { .fn = fn, .loc = call->loc, .parts = 1, .like = NONE };
    Val *v = NEWN(Val, fn->params.n + 1);
    bool fine = true;
    if (!fn_bind(g, call, fn, &args) || fn_recursion(g, call, fn))
        return val_none(call->loc);
    for (int k = 0; k < fn->params.n; k++) {
        v[k] = args.value[k] ? graph_eval(g, args.value[k]) : fn_default(g, fn, v, k);
        fine &= v[k].kind != V_NONE && fn_argument(g, &v[k]);
    }
    if (!fine || !fn_width(g, call, v, fn->params.n, &frame) || !fn_parts(g, args.heads, &frame))
        return val_none(call->loc);
    const char *given = args.name ? graph_string(g, args.name) : NULL;
    if (args.name && !given)
        return val_none(call->loc);
    frame.name = g->row ? model_join(g->row->name, given ? given : fn->name)
                        : model_name(g, given, fn->name);
    return fn_body(g, call, fn, v, &frame);
}
