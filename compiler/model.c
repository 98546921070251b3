/*
 * model.c - the operators of the language and the parameters they bring.
 *
 * A call is bound to the operator's table of arguments, then its function
 * checks widths and appends to the graph. Argument tables stand next to the
 * functions that read them, in the same order.
 *
 * Names. A parameter is PREFIX.name.weight. Without name= an operator is
 * called WORD.N ("h.3.linear.1"): N counts the operators of this word that
 * have no name= of their own, per prefix, from 1. Calls of blocks and of fn
 * count in the same way; elementwise operators too ("h.3.add.2"). An empty
 * name (name="") adds nothing to the prefix.
 */
#include "graph.h"

/* ---- names ------------------------------------------------------------ */

const char *model_join(const char *prefix, const char *name)
{
    if (!*prefix || !*name)
        return *prefix ? prefix : name;
    return str_fmt("%s.%s", prefix, name);
}

const char *model_name(Graph *g, const char *given, const char *word)
{
    if (given)
        return model_join(g->prefix, given);
    const char *key = str_fmt("%s %s", g->prefix, word);
    int n = map_get(g->counts, key);
    n = n < 0 ? 1 : n + 1;
    map_put(g->counts, key, n);
    return model_join(g->prefix, str_fmt("%s.%d", word, n));
}

/* ---- arguments -------------------------------------------------------- */

enum { MAX_ARGS = 10 };
typedef enum { POSITIONAL = 1, NEEDED = 2, WORD = 4 } ArgFlags;
typedef struct { const char *name; int flags; } ArgRow;
typedef struct {
    const ArgRow *rows; int n;
    const Expr *at[MAX_ARGS];       // by row; NULL: not given
    const Expr *call;
} Bound;

static void unknown_argument(Graph *g, const Bound *b, const Arg *arg)
{
    const char *names[MAX_ARGS];
    if (!graph_error(g, arg->name_loc, "unknown-argument", "%s has no argument `%s`",
                     b->call->text, arg->name))
        return;
    for (int i = 0; i < b->n; i++)
        names[i] = b->rows[i].name;
    graph_suggest(arg->name, names, b->n);
}

static int row_of(const Bound *b, const char *name)
{
    for (int i = 0; i < b->n; i++)
        if (strcmp(b->rows[i].name, name) == 0)
            return i;
    return NONE;
}

static int count_positional(const Bound *b)
{
    int n = 0;
    while (n < b->n && (b->rows[n].flags & POSITIONAL))
        n++;
    return n;
}

static bool bind_one(Graph *g, Bound *b, const Arg *arg, int i)
{
    int most = count_positional(b), k = arg->name ? row_of(b, arg->name) : i;
    if (k == NONE) {
        unknown_argument(g, b, arg);
        return false;
    }
    if (!arg->name && k >= most) {
        if (graph_error(g, arg->value->loc, "arguments", "%s takes %s before its "
                        "named ones", b->call->text, plural(most, "argument")) && most < b->n)
            diag_hint("arguments such as %s= are given by name", b->rows[most].name);
        return false;
    }
    if (b->at[k]) {
        bool by_place = k < b->call->args.n && !b->call->args.at[k].name;   // else: the parser
        if (by_place && graph_error(g, arg->value->loc, "arguments", "`%s` is given twice",
                                    b->rows[k].name))
            diag_note(b->at[k]->loc, "first here");
        return false;
    }
    b->at[k] = arg->value;
    return true;
}

/* Fills b->at. False: reported. */
static bool bind(Graph *g, const Expr *call, const ArgRow *rows, int n, Bound *b)
{
    bool fine = true;
    *b = (Bound){ .rows = rows, .n = n, .call = call };
    for (int i = 0; i < call->args.n; i++)
        fine &= bind_one(g, b, &call->args.at[i], i);
    for (int k = 0; k < n && fine; k++)
        if ((rows[k].flags & NEEDED) && !b->at[k]) {
            graph_error(g, call->loc, "arguments", "%s needs its argument `%s`", call->text,
                        rows[k].name);
            fine = false;
        }
    return fine;
}

/* The operator's full name from its name= argument. NULL: reported. */
static const char *bound_name(Graph *g, const Bound *b, const Expr *name)
{
    const char *given = name ? graph_string(g, name) : NULL;
    return name && !given ? NULL : model_name(g, given, b->call->text);
}

static bool bound_rows(Graph *g, const Expr *e, const char *what, TensorId *out)
{
    Val v = graph_eval(g, e);
    if (graph_is_kind(g, &v, T_ROWS)) {
        *out = v.tensor;
        return true;
    }
    if (v.kind != V_NONE && graph_error(g, e->loc, "type", "%s must be a tensor, not %s", what,
                                        graph_kind(g, &v)) && graph_is_kind(g, &v, T_IDS))
        diag_hint("embed(%s, ...) makes a tensor of them", g->p->tensors.at[v.tensor].name);
    return false;
}

static bool bound_bool(Graph *g, const Expr *e, const char *what, bool *out)
{
    if (!e)
        return true;
    Val v = graph_eval(g, e);
    if (v.kind == V_BOOL)
        *out = v.yes;
    else if (v.kind != V_NONE)
        graph_error(g, e->loc, "type", "%s must be `yes` or `no`, not %s", what,
                    graph_kind(g, &v));
    return v.kind == V_BOOL;
}

/* One of n words, by its index. */
static bool bound_word(Graph *g, const Expr *e, const char *what, const char *const *words, int n,
                       int *out)
{
    if (!e)
        return true;
    for (int i = 0; i < n && e->kind == E_NAME; i++)
        if (strcmp(words[i], e->text) == 0) {
            *out = i;
            return true;
        }
    Text list = { 0 };
    for (int i = 0; i < n; i++)
        text_add(&list, "%s`%s`", i ? " or " : "", words[i]);
    if (graph_error(g, e->loc, "type", "%s must be %s", what, list.at) && e->kind == E_NAME)
        graph_suggest(e->text, words, n);
    return false;
}

static int64_t width_of(const Graph *g, TensorId t)
{
    return g->p->tensors.at[t].width;
}

static void note_width(const Graph *g, TensorId t)
{
    diag_note(g->p->tensors.at[t].loc, "width %" PRId64 " comes from here", width_of(g, t));
}

/* The divisors of n next to v: "6 or 8". */
static const char *near_divisors(int64_t n, int64_t v)
{
    int64_t below = 0, above = 0;
    for (int64_t d = 1; d * d <= n && d < 1 << 20; d++)
        for (int k = 0; k < 2 && n % d == 0; k++) {
            int64_t q = k ? n / d : d;
            if (q < v && q > below)
                below = q;
            if (q > v && (above == 0 || q < above))
                above = q;
        }
    if (below && above)
        return str_fmt("%" PRId64 " or %" PRId64, below, above);
    return str_fmt("%" PRId64, below ? below : above);
}

/* ---- adding to the graph ---------------------------------------------- */

static TensorId new_rows(Graph *g, const char *name, Loc loc, int64_t width)
{
    return tensor_add(g->p, T_ROWS, name, loc, width);
}

static Op *add_op(Graph *g, OpKind kind, const char *name, Loc loc, int nin, const TensorId *in,
                  int nout, const TensorId *out)
{
    OpId id = op_add(g->p, kind, PHASE_FORWARD, name, loc, nin, in, nout, out);
    Op *op = &g->p->ops.at[id];
    op->repeat = g->repeat;
    op->turn = g->turn;
    op->zone = g->zone;
    return op;
}

ParamId model_param(Graph *g, const Param *like)
{
    Plan *p = g->p;
    int other = map_get(g->param_of, like->name), id = p->params.n;
    int64_t elements;
    if (other >= 0) {
        if (graph_error(g, like->loc, "duplicate-parameter", "two parameters are called %s",
                        like->name)) {
            diag_note(p->params.at[other].loc, "the other one is made here");
            diag_hint("name=\"...\" tells them apart; in a repeat, name=\"...{i}\"");
        }
        return NONE;
    }
    if (__builtin_mul_overflow(like->rows, like->width, &elements)
        || elements >= (int64_t)1 << 60) {
        graph_error(g, like->loc, "too-large", "%s has %" PRId64 " x %" PRId64 " elements",
                    like->name, like->rows, like->width);
        return NONE;
    }
    TensorId t = tensor_add(p, like->kind == PARAM_VECTOR ? T_VECTOR : T_MATRIX, like->name,
                            like->loc, like->width);
    p->tensors.at[t].rows = like->rows;
    p->tensors.at[t].param = id;
    Param param = *like;
    param.repeat = g->repeat;
    param.turn = g->turn;
    param.tensor = t;
    param.grad = NONE;
    vec_add(&p->params, param);
    map_put(g->param_of, like->name, id);
    return id;
}

/* ---- init ------------------------------------------------------------- */

static const struct { const char *name; InitKind kind; bool number; double a; } inits[] = {
    { "normal", INIT_NORMAL, true, 0 }, { "uniform", INIT_UNIFORM, true, 0 },
    { "constant", INIT_CONSTANT, true, 0 }, { "zeros", INIT_CONSTANT, false, 0 },
    { "ones", INIT_CONSTANT, false, 1 },
};
enum { NINITS = sizeof inits / sizeof inits[0] };

static int init_row(const Expr *e)
{
    for (int i = 0; i < NINITS && (e->kind == E_NAME || e->kind == E_CALL); i++)
        if (strcmp(inits[i].name, e->text) == 0)
            return i;
    return NONE;
}

/* normal(std) and the like, or a number where a fn's vector starts. */
bool model_init(Graph *g, const Expr *e, InitKind *kind, double *a)
{
    int i = init_row(e), nargs = e->kind == E_CALL ? e->args.n : 0;
    if (i == NONE && g->row && g->row->fn) {
        *kind = INIT_CONSTANT;
        return graph_number(g, e, "the initial value", a);
    }
    if (i == NONE) {
        static const char *const names[] = { "normal", "uniform", "constant", "zeros", "ones" };
        if (graph_error(g, e->loc, "type", "init must be normal(std), uniform(a), constant(c), "
                        "zeros or ones") && (e->kind == E_NAME || e->kind == E_CALL))
            graph_suggest(e->text, names, NINITS);
        return false;
    }
    *kind = inits[i].kind;
    *a = inits[i].a;
    if (nargs != inits[i].number) {
        graph_error(g, e->loc, "arguments", "%s takes %s", inits[i].name,
                    inits[i].number ? "one number" : "no argument");
        return false;
    }
    if (!inits[i].number)
        return true;
    if (!graph_number(g, e->args.at[0].value, inits[i].name, a))
        return false;
    if (*a >= 0 || *kind == INIT_CONSTANT)
        return true;
    graph_error(g, e->args.at[0].value->loc, "too-small", "%s of %g is negative", inits[i].name,
                *a);
    return false;
}

/* ---- linear ----------------------------------------------------------- */

static const ArgRow linear_args[] = {
    { "x", POSITIONAL | NEEDED }, { "width", POSITIONAL | NEEDED }, { "bias", 0 }, { "init", 0 },
    { "name", 0 }, { "tie", 0 }, { "stored", WORD },
};
enum { LIN_X, LIN_WIDTH, LIN_BIAS, LIN_INIT, LIN_NAME, LIN_TIE, LIN_STORED, LIN_N };
static const char *const stored_words[] = { "out_in", "in_out" };

static void tie_unknown(Graph *g, const Expr *tie, const char *name)
{
    if (!graph_error(g, tie->loc, "tie", "nothing with a matrix is called %s yet", name))
        return;
    const char **names = NEWN(const char *, g->p->params.n + 1);
    int n = 0;
    for (int i = 0; i < g->p->params.n; i++) {
        const Param *p = &g->p->params.at[i];
        size_t len = strlen(p->name), tail = strlen(".weight");
        if (p->kind != PARAM_VECTOR && len > tail)
            names[n++] = str_of(p->name, len - tail);
    }
    graph_suggest(name, names, n);
}

/* The tied matrix, and whether it is used as its transpose. NONE: reported. */
static ParamId tied_matrix(Graph *g, const Expr *tie, TensorId x, int64_t width, bool *transposed)
{
    const char *name = graph_string(g, tie);
    ParamId id = name ? map_get(g->matrix_of, name) : NONE;
    if (name && id < 0)
        tie_unknown(g, tie, name);
    if (id < 0)
        return NONE;
    const Param *p = &g->p->params.at[id];
    bool straight = p->rows == width_of(g, x) && p->width == width;
    bool reversed = p->width == width_of(g, x) && p->rows == width;
    *transposed = p->kind == PARAM_TABLE || !straight;
    if (p->kind == PARAM_TABLE ? reversed : straight || reversed)
        return id;
    if (graph_error(g, tie->loc, "tie", "%s is [%" PRId64 ", %" PRId64 "], but this linear goes "
                    "from width %" PRId64 " to %" PRId64, name, p->rows, p->width,
                    width_of(g, x), width)) {
        diag_note(p->loc, "%s is made here", name);
        if (p->kind == PARAM_TABLE && straight)
            diag_hint("a linear multiplies with an embedding's transpose");
        note_width(g, x);
    }
    return NONE;
}

static ParamId own_matrix(Graph *g, const Bound *b, const char *name, TensorId x, int64_t width,
                          bool out_in)
{
    Param like = { .kind = PARAM_MATRIX, .name = model_join(name, "weight"),
                   .loc = b->call->loc, .rows = width_of(g, x), .width = width,
                   .out_in = out_in, .init = INIT_NORMAL, .init_a = 0.02 };
    if (b->at[LIN_INIT] && !model_init(g, b->at[LIN_INIT], &like.init, &like.init_a))
        return NONE;
    ParamId id = model_param(g, &like);
    if (id != NONE)
        map_put(g->matrix_of, name, id);
    return id;
}

static Val add_bias(Graph *g, const char *name, TensorId y, Loc loc)
{
    Param like = { .kind = PARAM_VECTOR, .name = model_join(name, "bias"), .loc = loc,
                   .rows = 1, .width = width_of(g, y), .init = INIT_CONSTANT };
    ParamId id = model_param(g, &like);
    if (id == NONE)
        return val_none(loc);
    OpAt at = graph_at(g, name, loc);
    return val_tensor(rowop(g->p, &at, OP_ADD, y, g->p->params.at[id].tensor, width_of(g, y),
                            (RowAttr){ 0 }), loc);
}

static void warn_tied(Graph *g, const Expr *e, const char *what)
{
    if (e)
        graph_warning(g, e->loc, "no-effect", "%s has no effect on a tied matrix", what);
}

static Val call_linear(Graph *g, const Expr *call)
{
    Bound b;
    TensorId x;
    int64_t width;
    int in_out = 0;
    bool bias = true, transposed = false;
    Val none = val_none(call->loc);
    if (!bind(g, call, linear_args, LIN_N, &b))
        return none;
    bool fine = bound_rows(g, b.at[LIN_X], "x", &x);
    fine &= graph_size(g, b.at[LIN_WIDTH], "width", &width);
    fine &= bound_bool(g, b.at[LIN_BIAS], "bias", &bias);
    fine &= bound_word(g, b.at[LIN_STORED], "stored", stored_words, 2, &in_out);
    const char *name = bound_name(g, &b, b.at[LIN_NAME]);
    if (!fine || !name)
        return none;
    ParamId w = b.at[LIN_TIE] ? tied_matrix(g, b.at[LIN_TIE], x, width, &transposed)
                              : own_matrix(g, &b, name, x, width, !in_out);
    if (w == NONE)
        return none;
    if (b.at[LIN_TIE]) {
        warn_tied(g, b.at[LIN_INIT], "init");
        warn_tied(g, b.at[LIN_STORED], "stored");
    }
    TensorId in[2] = { x, g->p->params.at[w].tensor }, y = new_rows(g, name, call->loc, width);
    add_op(g, OP_LINEAR, name, call->loc, 2, in, 1, &y)->transposed = transposed;
    return bias ? add_bias(g, name, y, call->loc) : val_tensor(y, call->loc);
}

/* ---- embed ------------------------------------------------------------ */

static const ArgRow embed_args[] = {
    { "ids", POSITIONAL | NEEDED }, { "count", POSITIONAL | NEEDED },
    { "width", POSITIONAL | NEEDED }, { "init", 0 }, { "name", 0 },
};
enum { EMB_IDS, EMB_COUNT, EMB_WIDTH, EMB_INIT, EMB_NAME, EMB_N };

/* A table of positions must hold a row for each of the sequence. */
static bool positions_fit(Graph *g, const Expr *count, int64_t rows)
{
    const Num *sequence = &g->train->sequence;
    if (!g->p->config->has_train || sequence->v <= (double)rows)
        return true;
    if (graph_error(g, count->loc, "positions-fit", "a table of %s for sequences of "
                    "%.0f tokens", plural(rows, "position"), sequence->v)) {
        diag_note(sequence->loc, "sequence = %.0f stands here", sequence->v);
        diag_hint("%.0f rows, or a sequence of at most %" PRId64, sequence->v, rows);
    }
    return false;
}

static bool embed_ids(Graph *g, const Expr *e, int64_t count, const Expr *count_expr,
                      TensorId *ids)
{
    Val v = graph_eval(g, e);
    if (v.kind == V_NONE)
        return false;
    if (!graph_is_kind(g, &v, T_IDS)) {
        graph_error(g, e->loc, "type", "embed needs `tokens` or `positions`, not %s",
                    graph_kind(g, &v));
        return false;
    }
    *ids = v.tensor;
    if (v.tensor == g->p->targets) {
        graph_error(g, e->loc, "target-visible", "a model must not see its targets");
        return false;
    }
    return v.tensor != g->p->positions || positions_fit(g, count_expr, count);
}

static Val call_embed(Graph *g, const Expr *call)
{
    Bound b;
    TensorId ids;
    int64_t count, width;
    Val none = val_none(call->loc);
    if (!bind(g, call, embed_args, EMB_N, &b))
        return none;
    bool fine = graph_size(g, b.at[EMB_COUNT], "count", &count);
    fine &= graph_size(g, b.at[EMB_WIDTH], "width", &width);
    const char *name = bound_name(g, &b, b.at[EMB_NAME]);
    if (!fine || !name || !embed_ids(g, b.at[EMB_IDS], count, b.at[EMB_COUNT], &ids))
        return none;
    Param like = { .kind = PARAM_TABLE, .name = model_join(name, "weight"), .loc = call->loc,
                   .rows = count, .width = width, .init = INIT_NORMAL, .init_a = 0.02 };
    if (b.at[EMB_INIT] && !model_init(g, b.at[EMB_INIT], &like.init, &like.init_a))
        return none;
    ParamId id = model_param(g, &like);
    if (id == NONE)
        return none;
    map_put(g->matrix_of, name, id);
    TensorId in[2] = { ids, g->p->params.at[id].tensor }, y = new_rows(g, name, call->loc, width);
    add_op(g, OP_EMBED, name, call->loc, 2, in, 1, &y);
    return val_tensor(y, call->loc);
}

/* ---- attention -------------------------------------------------------- */

static const ArgRow attention_args[] = {
    { "q", POSITIONAL | NEEDED }, { "k", POSITIONAL | NEEDED }, { "v", POSITIONAL | NEEDED },
    { "heads", NEEDED }, { "kv_heads", 0 }, { "causal", 0 }, { "window", 0 }, { "scale", 0 },
    { "softcap", 0 }, { "name", 0 },
};
enum { ATT_Q, ATT_K, ATT_V, ATT_HEADS, ATT_KV, ATT_CAUSAL, ATT_WINDOW, ATT_SCALE, ATT_SOFTCAP,
       ATT_NAME, ATT_N };

/* Width of t splits into heads. */
static bool heads_split(Graph *g, const Expr *at, TensorId t, int64_t heads)
{
    int64_t width = width_of(g, t);
    if (width % heads == 0)
        return true;
    if (graph_error(g, at->loc, "heads-match", "width %" PRId64 " does not split into %s", width,
                    plural(heads, "head"))) {
        note_width(g, t);
        diag_hint("heads can be %s", near_divisors(width, heads));
    }
    return false;
}

static bool kv_width(Graph *g, const Expr *e, const char *what, TensorId t, int64_t kv_heads,
                     int64_t head_dim)
{
    if (width_of(g, t) == kv_heads * head_dim)
        return true;
    if (graph_error(g, e->loc, "heads-match", "%s has width %" PRId64 ", but %s of %" PRId64
                    " need%s %" PRId64, what, width_of(g, t), plural(kv_heads, "kv head"), head_dim,
                    kv_heads == 1 ? "s" : "", kv_heads * head_dim))
        note_width(g, t);
    return false;
}

static bool heads_match(Graph *g, const Bound *b, const TensorId *qkv, int64_t heads,
                        int64_t kv_heads)
{
    const Expr *kv = b->at[ATT_KV] ? b->at[ATT_KV] : b->at[ATT_HEADS];
    if (heads % kv_heads != 0) {
        if (graph_error(g, kv->loc, "heads-match", "%s not share %s evenly",
                        heads == 1 ? "1 head does" : str_fmt("%" PRId64 " heads do", heads),
                        plural(kv_heads, "kv head"))) {
            diag_note(b->at[ATT_HEADS]->loc, "heads = %" PRId64 " stands here", heads);
            diag_hint("kv_heads can be %s", near_divisors(heads, kv_heads));
        }
        return false;
    }
    if (!heads_split(g, b->at[ATT_HEADS], qkv[0], heads))
        return false;
    int64_t head_dim = width_of(g, qkv[0]) / heads;
    bool fine = kv_width(g, b->at[ATT_K], "k", qkv[1], kv_heads, head_dim);
    return kv_width(g, b->at[ATT_V], "v", qkv[2], kv_heads, head_dim) && fine;
}

/* A number of at least `least`; out keeps its value where e is NULL. */
static bool at_least(Graph *g, const Expr *e, const char *what, double least, double *out)
{
    if (!e)
        return true;
    if (!graph_number(g, e, what, out))
        return false;
    if (*out >= least)
        return true;
    graph_error(g, e->loc, "too-small", "%s is %g; it must be at least %g", what, *out, least);
    return false;
}

/* causal, window, scale, softcap. window > 0 sees back only, so it is causal. */
static bool attention_numbers(Graph *g, const Bound *b, int64_t head_dim, Op *op)
{
    double window = 0;
    op->causal = true;
    op->scale = 1 / sqrt((double)head_dim);
    bool fine = bound_bool(g, b->at[ATT_CAUSAL], "causal", &op->causal);
    fine &= at_least(g, b->at[ATT_WINDOW], "window", 0, &window);
    fine &= !b->at[ATT_SCALE] || graph_number(g, b->at[ATT_SCALE], "scale", &op->scale);
    fine &= at_least(g, b->at[ATT_SOFTCAP], "softcap", 0, &op->softcap);
    if (!fine || !graph_whole(g, b->at[ATT_WINDOW] ? b->at[ATT_WINDOW]->loc : b->call->loc,
                              window, "window", &op->window))
        return false;
    if (op->window > 0 && !op->causal) {
        graph_warning(g, b->at[ATT_CAUSAL]->loc, "no-effect", "a window looks back only, so "
                      "causal=no changes nothing");
        op->causal = true;
    }
    return true;
}

static Val call_attention(Graph *g, const Expr *call)
{
    Bound b;
    TensorId qkv[3] = { 0 }, out[2];
    int64_t heads = 0, kv_heads = 0;
    Op set = { 0 };
    Val none = val_none(call->loc);
    if (!bind(g, call, attention_args, ATT_N, &b))
        return none;
    bool fine = bound_rows(g, b.at[ATT_Q], "q", &qkv[0]);
    fine &= bound_rows(g, b.at[ATT_K], "k", &qkv[1]);
    fine &= bound_rows(g, b.at[ATT_V], "v", &qkv[2]);
    fine &= graph_count(g, b.at[ATT_HEADS], "heads", &heads);
    kv_heads = heads;
    fine &= !b.at[ATT_KV] || graph_count(g, b.at[ATT_KV], "kv_heads", &kv_heads);
    const char *name = bound_name(g, &b, b.at[ATT_NAME]);
    if (!fine || !name || !heads_match(g, &b, qkv, heads, kv_heads)
        || !attention_numbers(g, &b, width_of(g, qkv[0]) / heads, &set))
        return none;
    out[0] = new_rows(g, name, call->loc, width_of(g, qkv[0]));
    out[1] = new_rows(g, str_fmt("%s.lse", name), call->loc, heads);
    Op *op = add_op(g, OP_ATTN, name, call->loc, 3, qkv, 2, out);
    op->heads = (int)heads;
    op->kv_heads = (int)kv_heads;
    op->heads_loc = b.at[ATT_HEADS]->loc;
    op->kv_loc = b.at[ATT_KV] ? b.at[ATT_KV]->loc : op->heads_loc;
    op->causal = set.causal;
    op->window = set.window;
    op->scale = set.scale;
    op->softcap = set.softcap;
    if (!op->causal && !g->p->sees_ahead) {
        g->p->sees_ahead = true;
        g->p->sees_ahead_loc = call->loc;
    }
    return val_tensor(out[0], call->loc);
}

/* ---- rope ------------------------------------------------------------- */

static const ArgRow rope_args[] = {
    { "x", POSITIONAL | NEEDED }, { "heads", NEEDED }, { "theta", 0 }, { "style", WORD },
    { "rotary", 0 }, { "name", 0 },
};
enum { ROPE_X, ROPE_HEADS, ROPE_THETA, ROPE_STYLE, ROPE_ROTARY, ROPE_NAME, ROPE_N };
static const char *const style_words[] = { "half", "interleaved" };

static bool rope_fits(Graph *g, const Bound *b, TensorId x, int64_t heads, int64_t rotary)
{
    int64_t head_dim = width_of(g, x) / heads;
    if (head_dim % 2 != 0 && !b->at[ROPE_ROTARY]) {
        if (graph_error(g, b->call->loc, "heads-match", "rope needs heads of an even size, not %"
                        PRId64, head_dim)) {
            note_width(g, x);
            diag_note(b->at[ROPE_HEADS]->loc, heads == 1 ? "1 head stands here"
                      : str_fmt("%" PRId64 " heads stand here", heads));
            if (head_dim > 1)
                diag_hint("rotary=%" PRId64 " turns all features of a head but the last",
                          head_dim - 1);
        }
        return false;
    }
    if (rotary % 2 == 0 && rotary <= head_dim)
        return true;
    if (graph_error(g, b->at[ROPE_ROTARY]->loc, "heads-match", "rotary is %" PRId64
                    "; it must be even and at most the head's %" PRId64, rotary, head_dim))
        note_width(g, x);
    return false;
}

static Val call_rope(Graph *g, const Expr *call)
{
    Bound b;
    TensorId x = NONE;
    int64_t heads = 1, rotary = 0;
    double theta = 10000;
    int style = 0;
    Val none = val_none(call->loc);
    if (!bind(g, call, rope_args, ROPE_N, &b))
        return none;
    bool fine = bound_rows(g, b.at[ROPE_X], "x", &x);
    fine &= graph_count(g, b.at[ROPE_HEADS], "heads", &heads);
    fine &= !b.at[ROPE_THETA] || graph_number(g, b.at[ROPE_THETA], "theta", &theta);
    fine &= !b.at[ROPE_ROTARY] || graph_size(g, b.at[ROPE_ROTARY], "rotary", &rotary);
    fine &= bound_word(g, b.at[ROPE_STYLE], "style", style_words, 2, &style);
    if (fine && theta <= 0) {
        graph_error(g, b.at[ROPE_THETA]->loc, "too-small", "theta is %g; it must be positive",
                    theta);
        return none;
    }
    const char *name = bound_name(g, &b, b.at[ROPE_NAME]);
    if (!fine || !name || !heads_split(g, b.at[ROPE_HEADS], x, heads))
        return none;
    if (rotary == 0)
        rotary = width_of(g, x) / heads;
    if (!rope_fits(g, &b, x, heads, rotary))
        return none;
    TensorId y = new_rows(g, name, call->loc, width_of(g, x));
    Op *op = add_op(g, OP_ROPE, name, call->loc, 1, &x, 1, &y);
    op->heads = (int)heads;
    op->theta = theta;
    op->rotary = rotary;
    op->interleaved = style == 1;
    return val_tensor(y, call->loc);
}

/* ---- split and concat ------------------------------------------------- */

static const ArgRow split_args[] = {
    { "x", POSITIONAL | NEEDED }, { "n", POSITIONAL | NEEDED }, { "heads", 0 }, { "name", 0 },
};
enum { SPL_X, SPL_N, SPL_HEADS, SPL_NAME, SPL_COUNT };

/* split(x, n): n equal widths, each over all parts of the row. */
static int64_t *equal_sizes(Graph *g, const Expr *e, double number, TensorId x, int64_t parts,
                            int *n)
{
    int64_t count, width = width_of(g, x) / parts;
    if (!graph_whole(g, e->loc, number, "the number of pieces", &count))
        return NULL;
    if (count < 1 || width % count != 0) {
        if (graph_error(g, e->loc, "widths-match", "width %" PRId64 " does not split into %"
                        PRId64, width, count)) {
            note_width(g, x);
            if (count > 0)
                diag_hint("it splits into %s", near_divisors(width, count));
        }
        return NULL;
    }
    if (count > 1 << 20) {
        graph_error(g, e->loc, "too-large", "a split into %" PRId64 " pieces", count);
        return NULL;
    }
    int64_t *sizes = NEWN(int64_t, count);
    *n = (int)count;
    for (int i = 0; i < *n; i++)
        sizes[i] = width / count * parts;
    return sizes;
}

/* split(x, [a, b]): widths inside a part; widths over the whole row are taken too. */
static int64_t *listed_sizes(Graph *g, const Val *list, TensorId x, int64_t parts, int *n)
{
    int64_t width = width_of(g, x) / parts, total = 0, *sizes = NEWN(int64_t, list->n + 1);
    for (int i = 0; i < list->n; i++) {
        const Val *v = &list->at[i];
        if (v->kind != V_NUMBER) {
            graph_error(g, v->loc, "type", "a width must be a number, not %s", graph_kind(g, v));
            return NULL;
        }
        if (!graph_whole(g, v->loc, v->number, "a width", &sizes[i]))
            return NULL;
        if (sizes[i] < 1 || sizes[i] > width * parts) {
            if (graph_error(g, v->loc, "widths-match", "a width of %" PRId64, sizes[i]))
                note_width(g, x);
            return NULL;
        }
        total += sizes[i];
    }
    bool whole = parts > 1 && total == width * parts;
    for (int i = 0; i < list->n && whole; i++)
        whole = sizes[i] % parts == 0;
    if (total != width && !whole) {
        if (graph_error(g, list->loc, "widths-match", "the widths add up to %" PRId64 ", not %"
                        PRId64, total, width))
            note_width(g, x);
        return NULL;
    }
    *n = list->n;
    for (int i = 0; i < *n && !whole; i++)
        sizes[i] *= parts;
    return sizes;
}

static bool bound_parts(Graph *g, const Expr *heads, int64_t *parts)
{
    *parts = 1;
    return !heads || graph_count(g, heads, "heads", parts);
}

static Val call_split(Graph *g, const Expr *call)
{
    Bound b;
    TensorId x;
    int64_t parts;
    int n = 0;
    Val none = val_none(call->loc);
    if (!bind(g, call, split_args, SPL_COUNT, &b))
        return none;
    bool fine = bound_rows(g, b.at[SPL_X], "x", &x);
    fine &= bound_parts(g, b.at[SPL_HEADS], &parts);
    Val how = graph_eval(g, b.at[SPL_N]);
    const char *name = bound_name(g, &b, b.at[SPL_NAME]);
    if (!fine || !name || how.kind == V_NONE
        || (b.at[SPL_HEADS] && !heads_split(g, b.at[SPL_HEADS], x, parts)))
        return none;
    if (how.kind != V_NUMBER && how.kind != V_LIST) {
        graph_error(g, how.loc, "type", "split needs a number or a list of widths, not %s",
                    graph_kind(g, &how));
        return none;
    }
    int64_t *sizes = how.kind == V_NUMBER ? equal_sizes(g, b.at[SPL_N], how.number, x,
                                                        parts, &n)
                                          : listed_sizes(g, &how, x, parts, &n);
    if (!sizes)
        return none;
    TensorId *out = NEWN(TensorId, n);
    Val *results = NEWN(Val, n);
    for (int i = 0; i < n; i++) {
        out[i] = new_rows(g, str_fmt("%s[%d]", name, i), call->loc, sizes[i]);
        results[i] = val_tensor(out[i], call->loc);
    }
    Op *op = add_op(g, OP_SPLIT, name, call->loc, 1, &x, n, out);
    op->parts = (int)parts;
    op->sizes = sizes;
    return val_list(n, results, true, call->loc);
}

/* Any number of tensors, then heads= and name=. */
static Val call_concat(Graph *g, const Expr *call)
{
    static const ArgRow rows[] = { { "heads", 0 }, { "name", 0 } };
    Bound b = { .rows = rows, .n = 2, .call = call };
    TensorId *in = NEWN(TensorId, call->args.n + 1);
    int64_t *sizes = NEWN(int64_t, call->args.n + 1), parts, width = 0;
    int n = 0;
    bool fine = true;
    for (int i = 0; i < call->args.n; i++) {
        const Arg *arg = &call->args.at[i];
        if (arg->name)
            fine &= bind_one(g, &b, arg, i);
        else
            fine &= bound_rows(g, arg->value, "an argument of concat", &in[n++]);
    }
    fine &= bound_parts(g, b.at[0], &parts);
    const char *name = bound_name(g, &b, b.at[1]);
    if (fine && n == 0) {
        graph_error(g, call->loc, "arguments", "concat needs at least one tensor");
        return val_none(call->loc);
    }
    for (int i = 0; i < n && fine; i++) {
        fine = !b.at[0] || heads_split(g, b.at[0], in[i], parts);
        sizes[i] = width_of(g, in[i]);
        width += sizes[i];
    }
    if (!fine || !name)
        return val_none(call->loc);
    TensorId y = new_rows(g, name, call->loc, width);
    Op *op = add_op(g, OP_CONCAT, name, call->loc, n, in, 1, &y);
    op->parts = (int)parts;
    op->sizes = sizes;
    return val_tensor(y, call->loc);
}

/* ---- dropout ---------------------------------------------------------- */

static const ArgRow dropout_args[] = {
    { "x", POSITIONAL | NEEDED }, { "p", POSITIONAL | NEEDED }, { "name", 0 },
};
enum { DROP_X, DROP_P, DROP_NAME, DROP_N };

/* The mask hangs on the name, so names of dropouts must differ. */
static bool dropout_name(Graph *g, const char *name, Loc loc)
{
    int other = map_get(g->dropouts, name);
    map_put(g->dropouts, name, (int)loc.start);
    if (other < 0)
        return true;
    if (graph_error(g, loc, "duplicate-name", "two dropouts are called %s and would share a mask",
                    name))
        diag_note((Loc){ (uint32_t)other, (uint32_t)other + 1 }, "the other one stands here");
    return false;
}

static Val call_dropout(Graph *g, const Expr *call)
{
    Bound b;
    TensorId x;
    double p;
    Val none = val_none(call->loc);
    if (!bind(g, call, dropout_args, DROP_N, &b))
        return none;
    bool fine = bound_rows(g, b.at[DROP_X], "x", &x);
    fine &= graph_number(g, b.at[DROP_P], "p", &p);
    const char *name = bound_name(g, &b, b.at[DROP_NAME]);
    if (!fine || !name)
        return none;
    if (p < 0 || p >= 1) {
        graph_error(g, b.at[DROP_P]->loc, "type", "p is %g; it must be at least 0 and below 1", p);
        return none;
    }
    if (!dropout_name(g, name, call->loc))
        return none;
    if (p == 0)
        return val_tensor(x, call->loc);
    uint64_t hash = hash_bytes(name, strlen(name), 0);
    OpAt at = graph_at(g, name, call->loc);
    RowAttr attr = { .c = p, .salt = (uint32_t)(hash ^ hash >> 32) };
    return val_tensor(rowop(g->p, &at, OP_DROPOUT, x, NONE, width_of(g, x), attr), call->loc);
}

/* ---- cross entropy ---------------------------------------------------- */

static const ArgRow ce_args[] = {
    { "logits", POSITIONAL | NEEDED }, { "targets", POSITIONAL | NEEDED }, { "ignore", 0 },
    { "name", 0 },
};
enum { CE_LOGITS, CE_TARGETS, CE_IGNORE, CE_NAME, CE_N };

static Val call_ce(Graph *g, const Expr *call)
{
    Bound b;
    TensorId in[2];
    int64_t ignore = -1;
    Val none = val_none(call->loc);
    if (!bind(g, call, ce_args, CE_N, &b))
        return none;
    bool fine = bound_rows(g, b.at[CE_LOGITS], "logits", &in[0]);
    fine &= !b.at[CE_IGNORE] || graph_integer(g, b.at[CE_IGNORE], "ignore", &ignore);
    Val ids = graph_eval(g, b.at[CE_TARGETS]);
    const char *name = bound_name(g, &b, b.at[CE_NAME]);
    if (ids.kind != V_NONE && !(ids.kind == V_TENSOR && ids.tensor == g->p->targets)) {
        graph_error(g, ids.loc, "type", "cross_entropy compares with `targets`, not %s",
                    graph_kind(g, &ids));
        return none;
    }
    if (!fine || !name || ids.kind == V_NONE)
        return none;
    in[1] = ids.tensor;
    TensorId loss = tensor_add(g->p, T_LOSS, name, call->loc, 1);
    add_op(g, OP_CE, name, call->loc, 2, in, 1, &loss)->ignore = ignore;
    return val_tensor(loss, call->loc);
}

/* ---- any call --------------------------------------------------------- */

static const struct { const char *name; Val (*call)(Graph *, const Expr *); } operators[] = {
    { "linear", call_linear }, { "embed", call_embed }, { "attention", call_attention },
    { "rope", call_rope }, { "split", call_split }, { "concat", call_concat },
    { "dropout", call_dropout }, { "cross_entropy", call_ce },
};
enum { NOPERATORS = sizeof operators / sizeof operators[0] };

static const Block *find_block(const Graph *g, const char *name)
{
    for (int i = 0; i < g->ast->blocks.n; i++)
        if (g->ast->blocks.at[i].name == name)
            return &g->ast->blocks.at[i];
    return NULL;
}

static const Fn *find_fn(const Graph *g, const char *name)
{
    for (int i = g->ast->fns.n - 1; i >= 0; i--)    // the user's before the prelude's
        if (g->ast->fns.at[i].name == name)
            return &g->ast->fns.at[i];
    return NULL;
}

/* Blocks and fns must not hide an operator, nor each other. */
void model_check_names(Graph *g)
{
    for (int i = 0; i < g->ast->blocks.n + g->ast->fns.n; i++) {
        bool is_fn = i >= g->ast->blocks.n;
        int k = is_fn ? i - g->ast->blocks.n : i;
        const char *name = is_fn ? g->ast->fns.at[k].name : g->ast->blocks.at[k].name;
        Loc loc = is_fn ? g->ast->fns.at[k].loc : g->ast->blocks.at[k].loc;
        bool taken = false;
        for (int j = 0; j < NOPERATORS; j++)
            taken |= strcmp(operators[j].name, name) == 0;
        for (int j = 0; row_builtin_names[j]; j++)
            taken |= strcmp(row_builtin_names[j], name) == 0;
        if (taken)
            graph_error(g, loc, "duplicate-name", "`%s` is an operator of the language", name);
    }
}

static void unknown_call(Graph *g, const Expr *call)
{
    if (!graph_error(g, call->name_loc, "unknown-name", "unknown operator `%s`", call->text))
        return;
    int n = 0, most = g->ast->blocks.n + g->ast->fns.n + NOPERATORS;
    for (int i = 0; row_builtin_names[i]; i++)
        most++;
    const char **names = NEWN(const char *, most);
    for (int i = 0; i < g->ast->blocks.n; i++)
        names[n++] = g->ast->blocks.at[i].name;
    for (int i = 0; i < g->ast->fns.n; i++)
        names[n++] = g->ast->fns.at[i].name;
    for (int i = 0; i < NOPERATORS; i++)
        names[n++] = operators[i].name;
    for (int i = 0; row_builtin_names[i]; i++)
        names[n++] = row_builtin_names[i];
    graph_suggest(call->text, names, n);
}

Val model_call(Graph *g, const Expr *call)
{
    const Block *block = find_block(g, call->text);
    const Fn *fn = block ? NULL : find_fn(g, call->text);
    Val result;
    if (fn)
        return row_fn(g, call, fn);
    if (!block && row_builtin(g, call, &result))
        return result;
    int i = 0;
    while (i < NOPERATORS && strcmp(operators[i].name, call->text) != 0)
        i++;
    if (!block && i == NOPERATORS) {
        unknown_call(g, call);
        return val_none(call->loc);
    }
    if (g->row) {
        if (graph_error(g, call->name_loc, "type", "%s cannot stand inside a fn", call->text))
            diag_note(g->row->fn->loc, "a fn is a row program: arithmetic and other fns");
        return val_none(call->loc);
    }
    return block ? graph_block(g, call, block) : operators[i].call(g, call);
}
