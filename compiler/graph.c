/*
 * graph.c - evaluates the model: names, scopes, statements, expressions.
 *
 * needs: ast, config.  fills: params, tensors, ops (forward).
 *
 * Scopes are short lists, one per frame: the model, a block's call, one turn
 * of a repeat, a fn's call. A name assigned in a repeat that stood outside is
 * carried; one that did not dies with its turn. Blocks see their parameters
 * and the model's names. After evaluation the checks of the whole model run
 * (graph_finish), and what never reaches the loss is removed.
 *
 * After the first turn with an error a repeat stops, so that one mistake in a
 * layer is one message.
 */
#include "graph.h"

#include <fnmatch.h>

enum {
    MAX_DEPTH = 1000,           // nested evaluations
    MAX_STEPS = 1000000,        // statements run
    MAX_OPS = 500000            // operators made
};
static const double MAX_ELEMENTS = 0x1p60;

/* ---- messages --------------------------------------------------------- */

static bool said_before(Graph *g, Loc loc, const char *check)
{
    const char *key = str_fmt("%u %u %s", loc.start, loc.end, check);
    if (map_get(g->said, key) >= 0)
        return true;
    map_put(g->said, key, 1);
    return false;
}

bool graph_error(Graph *g, Loc loc, const char *check, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    if (said_before(g, loc, check))
        return false;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    diag_error(loc, check, "%s", text);
    return true;
}

bool graph_warning(Graph *g, Loc loc, const char *check, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    if (said_before(g, loc, check))
        return false;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    diag_warning(loc, check, "%s", text);
    return true;
}

void graph_suggest(const char *word, const char *const *names, int n)
{
    const char *near = str_nearest(word, names, n);
    if (near)
        diag_hint("did you mean %s?", near);
}

/* ---- values ----------------------------------------------------------- */

Val val_none(Loc loc)
{
    return (Val){ .kind = V_NONE, .loc = loc };
}

Val val_number(double v, Loc loc)
{
    return (Val){ .kind = V_NUMBER, .loc = loc, .number = v };
}

Val val_tensor(TensorId t, Loc loc)
{
    return (Val){ .kind = V_TENSOR, .loc = loc, .tensor = t };
}

Val val_list(int n, Val *at, bool several, Loc loc)
{
    return (Val){ .kind = V_LIST, .loc = loc, .n = n, .at = at, .several = several };
}

bool graph_is_kind(const Graph *g, const Val *v, TensorKind kind)
{
    return v->kind == V_TENSOR && g->p->tensors.at[v->tensor].kind == kind;
}

const char *graph_kind(const Graph *g, const Val *v)
{
    if (v->kind == V_NUMBER)
        return "a number";
    if (v->kind == V_LIST)
        return v->several ? plural(v->n, "result") : "a list";
    if (v->kind == V_BOOL)
        return v->yes ? "`yes`" : "`no`";
    if (v->kind == V_STRING)
        return "a string";
    if (graph_is_kind(g, v, T_IDS))
        return str_fmt("the ids `%s`", g->p->tensors.at[v->tensor].name);
    return graph_is_kind(g, v, T_LOSS) ? "the loss" : "a tensor";
}

OpAt graph_at(const Graph *g, const char *name, Loc loc)
{
    return (OpAt){ .phase = PHASE_FORWARD, .name = name, .loc = loc, .repeat = g->repeat,
                   .turn = g->turn, .zone = g->zone, .of = NONE };
}

/* ---- names ------------------------------------------------------------ */

static Binding *scope_find(Scope *s, const char *name)
{
    for (; s; s = s->up)
        for (int i = 0; i < s->names.n; i++)
            if (s->names.at[i].name == name)
                return &s->names.at[i];
    return NULL;
}

void scope_put(Scope *s, const char *name, Val val, Loc loc)
{
    vec_add(&s->names, ((Binding){ name, val, loc }));
}

static Binding *name_find(const Graph *g, const char *name)
{
    Binding *b = scope_find(g->scope, name);
    return b || g->row ? b : scope_find(g->top, name);
}

static void add_scope_names(const Scope *s, const char ***at, int *n, int *cap)
{
    for (; s; s = s->up)
        for (int i = 0; i < s->names.n; i++) {
            vec_room((void **)at, cap, *n + 1, sizeof **at);
            (*at)[(*n)++] = s->names.at[i].name;
        }
}

static void name_unknown(Graph *g, const Expr *e)
{
    if (!graph_error(g, e->loc, "unknown-name", "unknown name `%s`", e->text))
        return;
    for (int i = 0; i < g->gone.n && !g->row; i++)
        if (g->gone.at[i].name == e->text) {
            diag_note(g->gone.at[i].loc, "`%s` of this repeat lives for one turn", e->text);
            diag_hint("give `%s` a value before the repeat, and it is carried", e->text);
            return;
        }
    const char **names = NULL;
    int n = 0, cap = 0;
    add_scope_names(g->scope, &names, &n, &cap);
    if (!g->row && g->scope != g->top)
        add_scope_names(g->top, &names, &n, &cap);
    graph_suggest(e->text, names, n);
}

/* ---- expressions ------------------------------------------------------ */

bool graph_enter(Graph *g, Loc loc)
{
    if (g->depth < MAX_DEPTH) {
        g->depth++;
        return true;
    }
    graph_error(g, loc, "too-large", "this is nested more than %d deep", MAX_DEPTH);
    return false;
}

static Val modulo(Graph *g, Val a, Val b, const Expr *e)
{
    if (a.kind == V_NONE || b.kind == V_NONE)
        return val_none(e->loc);
    const Val *wrong = a.kind != V_NUMBER ? &a : b.kind != V_NUMBER ? &b : NULL;
    if (wrong) {
        graph_error(g, wrong->loc, "type", "%% needs numbers, not %s", graph_kind(g, wrong));
        return val_none(e->loc);
    }
    if (b.number == 0) {
        graph_error(g, e->loc, "number", "%% by zero");
        return val_none(e->loc);
    }
    return val_number(a.number - b.number * floor(a.number / b.number), e->loc);
}

static Val binary(Graph *g, const Expr *e)
{
    Val a = graph_eval(g, e->args.at[0].value), b = graph_eval(g, e->args.at[1].value);
    switch (e->op) {
    case '+': return row_binary(g, OP_ADD, a, b, e->loc);
    case '-': return row_binary(g, OP_SUB, a, b, e->loc);
    case '*': return row_binary(g, OP_MUL, a, b, e->loc);
    case '/': return row_binary(g, OP_DIV, a, b, e->loc);
    case '^': return row_power(g, a, b, e->loc);
    default:  return modulo(g, a, b, e);
    }
}

static Val list_of(Graph *g, const Expr *e)
{
    Val *at = NEWN(Val, e->args.n + 1);
    for (int i = 0; i < e->args.n; i++) {
        at[i] = graph_eval(g, e->args.at[i].value);
        if (at[i].kind == V_NONE)
            return at[i];
    }
    return val_list(e->args.n, at, false, e->loc);
}

static Val indexed(Graph *g, const Expr *e)
{
    Val list = graph_eval(g, e->args.at[0].value);
    const Expr *at = e->args.at[1].value;
    int64_t i;
    if (list.kind == V_NONE)
        return list;
    if (list.kind != V_LIST) {
        graph_error(g, list.loc, "type", "only a list can be indexed, not %s",
                    graph_kind(g, &list));
        return val_none(e->loc);
    }
    if (!graph_integer(g, at, "an index", &i))
        return val_none(e->loc);
    if (i < 0 || i >= list.n) {
        if (graph_error(g, at->loc, "index", "index %" PRId64 " of a list of %d", i, list.n))
            diag_note(list.loc, "the list stands here; the first index is 0");
        return val_none(e->loc);
    }
    Val v = list.at[i];
    v.loc = e->loc;
    return v;
}

static Val name_value(Graph *g, const Expr *e)
{
    const Binding *b = name_find(g, e->text);
    if (!b) {
        name_unknown(g, e);
        return val_none(e->loc);
    }
    Val v = b->val;
    v.loc = e->loc;
    return v;
}

static Val eval(Graph *g, const Expr *e)
{
    switch (e->kind) {
    case E_NUMBER: return val_number(e->number, e->loc);
    case E_STRING: return (Val){ .kind = V_STRING, .loc = e->loc, .text = e->text };
    case E_NAME:   return name_value(g, e);
    case E_YES:
    case E_NO:     return (Val){ .kind = V_BOOL, .loc = e->loc, .yes = e->kind == E_YES };
    case E_LIST:   return list_of(g, e);
    case E_CALL:   return model_call(g, e);
    case E_INDEX:  return indexed(g, e);
    case E_UNARY:  return row_unary(g, OP_NEG, graph_eval(g, e->args.at[0].value), e->loc);
    case E_BINARY: return binary(g, e);
    case E_AUTO:
        graph_error(g, e->loc, "type", "`auto` has no meaning in a model");
        return val_none(e->loc);
    case E_QUANTITY:
        graph_error(g, e->loc, "type", "a model has no units: write a plain number");
        return val_none(e->loc);
    }
    bug("an expression of kind %d", (int)e->kind);
}

Val graph_eval(Graph *g, const Expr *e)
{
    if (g->full || !graph_enter(g, e->loc))
        return val_none(e->loc);
    Val v = eval(g, e);
    g->depth--;
    if (g->p->ops.n > MAX_OPS && !g->full) {
        graph_error(g, e->loc, "too-large", "the model has more than %d operators", MAX_OPS);
        g->full = true;
    }
    return v;
}

bool graph_number(Graph *g, const Expr *e, const char *what, double *out)
{
    Val v = graph_eval(g, e);
    if (v.kind == V_NUMBER) {
        *out = v.number;
        return true;
    }
    if (v.kind != V_NONE)
        graph_error(g, e->loc, "type", "%s must be a number, not %s", what, graph_kind(g, &v));
    return false;
}

/* Whole up to rounding: 8/3 * 768 is 2048. */
bool graph_whole(Graph *g, Loc loc, double v, const char *what, int64_t *out)
{
    double near = floor(v + 0.5);
    if (fabs(v - near) <= 1e-12 * fabs(v) && fabs(near) < 0x1p53) {
        *out = (int64_t)near;
        return true;
    }
    if (fabs(v) >= 0x1p53)
        graph_error(g, loc, "too-large", "%s is %.6g, which is too large", what, v);
    else if (graph_error(g, loc, "width-integer", "%s is %.9g, not a whole number", what, v))
        diag_hint("%.0f and %.0f are the nearest; floor( ) and ceil( ) round", floor(v), ceil(v));
    return false;
}

bool graph_integer(Graph *g, const Expr *e, const char *what, int64_t *out)
{
    double v;
    return graph_number(g, e, what, &v) && graph_whole(g, e->loc, v, what, out);
}

bool graph_size(Graph *g, const Expr *e, const char *what, int64_t *out)
{
    if (!graph_integer(g, e, what, out))
        return false;
    if (*out < 1)
        graph_error(g, e->loc, "too-small", "%s is %" PRId64 "; it must be at least 1", what,
                    *out);
    else if (*out >= (int64_t)1 << 40)
        graph_error(g, e->loc, "too-large", "%s is %" PRId64 "; it must be below 2^40", what,
                    *out);
    else
        return true;
    return false;
}

bool graph_count(Graph *g, const Expr *e, const char *what, int64_t *out)
{
    if (!graph_size(g, e, what, out))
        return false;
    if (*out <= 1 << 24)
        return true;
    graph_error(g, e->loc, "too-large", "%s is %" PRId64 "; at most 2^24 are supported", what,
                *out);
    return false;
}

/* ---- strings ---------------------------------------------------------- */

/* Text of {expr}; the string's bytes in the source are parsed again, in place. */
static bool interpolate(Graph *g, const Expr *e, size_t open, size_t close, Text *t)
{
    const char *in_source = source_text(e->loc.start);
    uint32_t start = e->loc.start + 1 + (uint32_t)open;
    if (strncmp(in_source + 1, e->text, strlen(e->text)) != 0)      // quotes were left out
        start = source_add(source_name(e->loc.start), e->text, strlen(e->text)) + (uint32_t)open;
    Expr *inner = parse_expr(start, start + (uint32_t)(close - open));
    if (!inner)
        return false;
    Val v = graph_eval(g, inner);
    if (v.kind == V_STRING)
        text_add(t, "%s", v.text);
    else if (v.kind == V_NUMBER && v.number == floor(v.number) && fabs(v.number) < 1e15)
        text_add(t, "%.0f", v.number);
    else if (v.kind == V_NUMBER)
        text_add(t, "%.9g", v.number);
    else if (v.kind != V_NONE)
        graph_error(g, inner->loc, "type", "{ } in a string needs a number, not %s",
                    graph_kind(g, &v));
    return v.kind == V_STRING || v.kind == V_NUMBER;
}

const char *graph_string(Graph *g, const Expr *e)
{
    Val v = graph_eval(g, e);
    if (v.kind == V_NONE)
        return NULL;
    if (v.kind != V_STRING || e->kind != E_STRING) {
        graph_error(g, e->loc, "type", "a name must be a string, not %s", graph_kind(g, &v));
        return NULL;
    }
    Text t = { 0 };
    for (const char *s = e->text; *s; ) {
        size_t plain = strcspn(s, "{");
        text_add(&t, "%.*s", (int)plain, s);
        s += plain;
        if (!*s)
            break;
        size_t inside = strcspn(s, "}");
        if (!s[inside]) {
            graph_error(g, e->loc, "type", "the string has a { without a }");
            return NULL;
        }
        size_t open = (size_t)(s - e->text) + 1;
        if (!interpolate(g, e, open, open + inside - 1, &t))
            return NULL;
        s += inside + 1;
    }
    return t.n ? str_of(t.at, t.n) : "";
}

/* ---- assignments ------------------------------------------------------ */

/* `loss` of the model: once, outside repeats, and a cross entropy. */
static void assign_loss(Graph *g, const Val *v, Loc loc)
{
    if (g->scope != g->top) {
        graph_error(g, loc, "loss", "`loss` is assigned once, outside every repeat");
    } else if (g->loss_loc.end) {
        if (graph_error(g, loc, "loss", "`loss` is assigned twice"))
            diag_note(g->loss_loc, "first here");
    } else {
        g->loss_loc = loc;
        if (graph_is_kind(g, v, T_LOSS))
            g->p->loss = v->tensor;
        else if (v->kind != V_NONE
                 && graph_error(g, v->loc, "loss", "`loss` must be a cross entropy, not %s",
                                graph_kind(g, v)))
            diag_hint("loss = cross_entropy(logits, targets)");
    }
}

static void assign(Graph *g, const Name *name, Val v)
{
    bool is_loss = g->block == NULL && strcmp(name->name, "loss") == 0;
    const Binding *given = scope_find(g->top, name->name);
    if (given && given->loc.end == 0 && graph_is_kind(g, &given->val, T_IDS)) {
        graph_error(g, name->loc, "type", "`%s` is given and cannot be assigned", name->name);
        return;
    }
    if (v.kind == V_STRING || v.kind == V_BOOL || (v.kind == V_LIST && v.several)) {
        if (!is_loss)
            graph_error(g, v.loc, "type", "a name holds a number or a tensor, not %s",
                        graph_kind(g, &v));
        v = val_none(v.loc);
    }
    if (is_loss)
        assign_loss(g, &v, name->loc);
    Binding *b = scope_find(g->scope, name->name);
    if (b) {
        b->val = v;
        b->loc = name->loc;
        return;
    }
    Scope *s = g->scope;        // a name of the model, hidden by a block, is carried too
    while (given && s->up)
        s = s->up;
    scope_put(s, name->name, v, name->loc);
}

/* --set model.NAME=VALUE, the last one that names it; NULL: none. */
static const char *set_name(const Entry *set)
{
    return strncmp(set->name, "model.", 6) == 0 ? set->name + 6 : set->name;
}

static const Entry *set_of(Graph *g, const Name *name)
{
    const Entry *found = NULL;
    if (g->scope != g->top || scope_find(g->top, name->name))
        return NULL;        // only what is first assigned at the top level
    for (int i = 0; i < g->p->config->model_sets.n; i++)
        if (strcmp(set_name(&g->p->config->model_sets.at[i]), name->name) == 0)
            found = &g->p->config->model_sets.at[i];
    return found;
}

static Val set_value(Graph *g, const Entry *set, const Name *name, Val v)
{
    map_put(g->set_done, name->name, 1);
    if (v.kind != V_NUMBER) {
        if (v.kind != V_NONE && graph_error(g, set->loc, "type", "`%s` holds %s, not a number",
                                            name->name, graph_kind(g, &v)))
            diag_note(name->loc, "it is assigned here");
        return val_none(v.loc);
    }
    double number;
    if (set->values.n != 1) {
        graph_error(g, set->loc, "type", "model.%s takes one number", name->name);
        return val_none(v.loc);
    }
    if (!graph_number(g, set->values.at[0], str_fmt("model.%s", name->name), &number))
        return val_none(v.loc);
    return val_number(number, set->values.at[0]->loc);
}

static void run_assign(Graph *g, const Stmt *s)
{
    Val v = graph_eval(g, s->value);
    if (s->names.n == 1) {
        const Entry *set = set_of(g, &s->names.at[0]);
        if (v.kind == V_LIST && v.several && v.n == 1)
            v = v.at[0];
        assign(g, &s->names.at[0], set ? set_value(g, set, &s->names.at[0], v) : v);
        return;
    }
    bool fine = v.kind == V_LIST && v.n == s->names.n;
    if (!fine && v.kind != V_NONE)
        graph_error(g, s->value->loc, "arguments", "%s assigned, but this gives %s",
                    s->names.n == 1 ? "1 name is" : str_fmt("%d names are", s->names.n),
                    v.kind == V_LIST ? plural(v.n, "result") : graph_kind(g, &v));
    for (int i = 0; i < s->names.n; i++)
        assign(g, &s->names.at[i], fine ? v.at[i] : val_none(s->value->loc));
}

/* ---- repeats ---------------------------------------------------------- */

static void run(Graph *g, const Stmts *body);

/* One statement or turn more; false: too many. */
static bool count_step(Graph *g, Loc loc)
{
    if (++g->steps <= MAX_STEPS)
        return true;
    graph_error(g, loc, "too-large", "the model runs more than %d statements", MAX_STEPS);
    g->full = true;
    return false;
}

static void add_repeat(Plan *p, int64_t turns)
{
    int *copy = NEWN(int, p->nrepeats + 1);
    for (int i = 0; i < p->nrepeats; i++)
        copy[i] = p->turns[i];
    copy[p->nrepeats++] = (int)turns;
    p->turns = copy;
    p->layers += (int)turns;
}

/* One turn in a scope of its own, with the index in it. */
static void run_turn(Graph *g, const Stmt *s, int64_t i)
{
    Scope *inner = NEW(Scope);
    inner->up = g->scope;
    g->scope = inner;
    scope_put(inner, s->names.at[0].name, val_number((double)i, s->names.at[0].loc),
              s->names.at[0].loc);
    run(g, &s->body);
    g->scope = inner->up;
    for (int k = 0; k < inner->names.n && i == 0; k++)
        vec_add(&g->gone, ((Name){ inner->names.at[k].name, inner->names.at[k].loc }));
}

static void run_repeat(Graph *g, const Stmt *s)
{
    int64_t turns;
    bool top = g->scope == g->top;
    if (!graph_integer(g, s->value, "the number of turns", &turns))
        return;
    if (turns < 0 || turns > MAX_STEPS) {
        graph_error(g, s->value->loc, turns < 0 ? "too-small" : "too-large",
                    "a repeat of %s", plural(turns, "turn"));
        return;
    }
    if (top)
        add_repeat(g->p, turns);
    int errors = diag_errors();
    for (int64_t i = 0; i < turns && !g->full && diag_errors() == errors; i++) {
        if (top) {
            g->zone++;
            g->repeat = g->p->nrepeats - 1;
            g->turn = (int)i;
        }
        if (count_step(g, s->loc))
            run_turn(g, s, i);
    }
    if (top) {
        g->zone++;
        g->repeat = g->turn = NONE;
    }
}

static void run(Graph *g, const Stmts *body)
{
    for (int i = 0; i < body->n && !g->full; i++) {
        const Stmt *s = body->at[i];
        if (count_step(g, s->loc)) {
            if (s->is_repeat)
                run_repeat(g, s);
            else
                run_assign(g, s);
        }
    }
}

/* ---- blocks ----------------------------------------------------------- */

static bool block_recursion(Graph *g, const Expr *call, const Block *b)
{
    for (const BlockFrame *f = g->block; f; f = f->up) {
        if (f->block != b)
            continue;
        if (graph_error(g, call->loc, "recursion", "block %s calls itself", b->name))
            diag_note(b->loc, "%s is defined here", b->name);
        return true;
    }
    return false;
}

static int block_param(const Block *b, const char *name)
{
    for (int i = 0; i < b->params.n; i++)
        if (b->params.at[i].name == name)
            return i;
    return NONE;
}

static void block_unknown(Graph *g, const Block *b, const Arg *arg)
{
    if (!graph_error(g, arg->name_loc, "unknown-argument", "block %s has no parameter `%s`",
                     b->name, arg->name))
        return;
    const char **names = NEWN(const char *, b->params.n + 1);
    for (int i = 0; i < b->params.n; i++)
        names[i] = b->params.at[i].name;
    names[b->params.n] = "name";
    graph_suggest(arg->name, names, b->params.n + 1);
}

/* One argument too many, or one given by place and by name. */
static void block_excess(Graph *g, const Expr *call, const Block *b, const Arg *arg, int k)
{
    bool said = k < b->params.n
        ? k < call->args.n && !call->args.at[k].name        // else the parser said so
            && graph_error(g, arg->value->loc, "arguments", "`%s` is given twice", arg->name)
        : graph_error(g, arg->value->loc, "arguments", "block %s takes %s, %d given", b->name,
                      plural(b->params.n, "argument"), call->args.n);
    if (said)
        diag_note(b->loc, "%s is defined here", b->name);
}

/* Arguments by parameter, and name=. */
static bool block_bind(Graph *g, const Expr *call, const Block *b, Val *v, const Expr **name)
{
    bool *have = NEWN(bool, b->params.n + 1), fine = true;
    for (int i = 0; i < call->args.n; i++) {
        const Arg *arg = &call->args.at[i];
        int k = arg->name ? block_param(b, arg->name) : i;
        if (arg->name && k == NONE && strcmp(arg->name, "name") == 0) {
            *name = arg->value;
        } else if (k == NONE) {
            block_unknown(g, b, arg);
            fine = false;
        } else if (k >= b->params.n || have[k]) {
            block_excess(g, call, b, arg, k);
            return false;
        } else {
            v[k] = graph_eval(g, arg->value);
            have[k] = true;
            fine &= v[k].kind != V_NONE;
        }
    }
    for (int k = 0; k < b->params.n && fine; k++)
        if (!have[k]) {
            if (graph_error(g, call->loc, "arguments", "block %s needs its argument `%s`",
                            b->name, b->params.at[k].name))
                diag_note(b->loc, "%s is defined here", b->name);
            fine = false;
        }
    return fine;
}

static Val block_results(Graph *g, const Block *b, Loc loc)
{
    Val *at = NEWN(Val, b->results.n + 1);
    for (int i = 0; i < b->results.n; i++)
        at[i] = graph_eval(g, b->results.at[i]);
    for (int i = 0; i < b->results.n; i++)
        if (at[i].kind == V_NONE)
            return val_none(loc);
    if (b->results.n == 1) {
        at[0].loc = loc;
        return at[0];
    }
    return val_list(b->results.n, at, true, loc);
}

Val graph_block(Graph *g, const Expr *call, const Block *b)
{
    Val *v = NEWN(Val, b->params.n + 1);
    const Expr *name = NULL;
    if (!block_bind(g, call, b, v, &name) || block_recursion(g, call, b))
        return val_none(call->loc);
    const char *given = name ? graph_string(g, name) : NULL;
    if (name && !given)
        return val_none(call->loc);
    BlockFrame frame = { b, call->loc, g->block };
    Scope *outer = g->scope, *inner = NEW(Scope);
    const char *prefix = g->prefix;
    for (int k = 0; k < b->params.n; k++)
        scope_put(inner, b->params.at[k].name, v[k], b->params.at[k].loc);
    g->prefix = model_name(g, given, b->name);
    g->block = &frame;
    g->scope = inner;
    run(g, &b->body);
    Val result = block_results(g, b, call->loc);
    g->scope = outer;
    g->block = frame.up;
    g->prefix = prefix;
    return result;
}

/* ---- checks of the whole model ---------------------------------------- */

/* Every --set model.NAME must have met the number it replaces. */
static void check_sets(Graph *g)
{
    const Config *c = g->p->config;
    for (int i = 0; i < c->model_sets.n; i++) {
        const Entry *set = &c->model_sets.at[i];
        const char *name = str(set_name(set)), **names = NULL;
        int n = 0, cap = 0;
        const Binding *b = scope_find(g->top, name);
        if (map_get(g->set_done, name) >= 0
            || !graph_error(g, set->loc, "unknown-name", "the model has no number `%s`", name))
            continue;
        if (b && b->loc.end) {
            diag_note(b->loc, "`%s` is assigned here, together with others", name);
            continue;
        }
        for (int k = 0; k < g->top->names.n; k++)
            if (g->top->names.at[k].val.kind == V_NUMBER) {
                vec_room((void **)&names, &cap, n + 1, sizeof *names);
                names[n++] = g->top->names.at[k].name;
            }
        graph_suggest(name, names, n);
    }
}

static void check_loss(Graph *g)
{
    if (g->loss_loc.end || g->full || g->errors_before)
        return;
    if (graph_error(g, g->ast->model_loc, "loss", "model %s assigns no `loss`",
                    g->ast->model_name))
        diag_hint("loss = cross_entropy(logits, targets)");
}

/* The token table with the fewest rows, or NULL. */
static const Op *least_table(const Plan *p)
{
    const Op *least = NULL;
    for (int i = 0; i < p->ops.n; i++) {
        const Op *op = &p->ops.at[i];
        if (op->kind == OP_EMBED && op->in[0] == p->tokens
            && (!least || p->tensors.at[op->in[1]].rows < p->tensors.at[least->in[1]].rows))
            least = op;
    }
    return least;
}

/* Vocabulary, and what the objective asks of the model. */
static void check_objective(Graph *g)
{
    Plan *p = g->p;
    const Train *t = g->train;
    const Op *ce = &p->ops.at[p->tensors.at[p->loss].def];
    p->vocab = p->tensors.at[ce->in[0]].width;
    const Op *table = least_table(p);
    int64_t rows = table ? p->tensors.at[table->in[1]].rows : p->vocab;
    p->token_limit = rows < p->vocab ? rows : p->vocab;
    if (!p->config->has_train)
        return;
    if (t->objective == OBJ_MASKED && (t->mask_token < 0 || t->mask_token >= rows)) {
        if (graph_error(g, t->objective_loc, "token-range", "the mask token is %" PRId64
                        ", but there %s %s", t->mask_token, rows == 1 ? "is" : "are",
                        plural(rows, "token")))
            diag_note(table ? table->loc : ce->loc, "%" PRId64 " comes from here", rows);
    }
    if (t->objective == OBJ_NEXT && p->sees_ahead) {
        if (graph_error(g, p->sees_ahead_loc, "target-visible", "this attention sees the tokens "
                        "that objective = next asks for")) {
            if (t->objective_loc.end)
                diag_note(t->objective_loc, "the objective stands here");
            diag_hint("causal=yes, or objective = masked(p=0.15, token=...)");
        }
    }
}

/* Vectors never decay, matrices and tables do unless a pattern names them. */
static void mark_decay(Graph *g)
{
    Plan *p = g->p;
    for (int i = 0; i < p->params.n; i++)
        p->params.at[i].decay = p->params.at[i].kind != PARAM_VECTOR;
    for (int k = 0; k < g->train->no_decay.n; k++) {
        Word w = g->train->no_decay.at[k];
        bool any = false;
        for (int i = 0; i < p->params.n; i++)
            if (fnmatch(w.v, p->params.at[i].name, 0) == 0) {
                p->params.at[i].decay = false;
                any = true;
            }
        if (!any)
            diag_warning(w.loc, "no-effect", "no_decay \"%s\" names no parameter", w.v);
    }
}

/* Byte counts of later passes are 64-bit; this keeps every product inside. */
static void check_sizes(Graph *g)
{
    Plan *p = g->p;
    double rows = fmax(1, g->train->batch.v) * fmax(1, g->train->sequence.v), total = 0;
    for (int i = 0; i < p->params.n; i++)
        total += (double)p->params.at[i].rows * (double)p->params.at[i].width;
    if (total >= MAX_ELEMENTS)
        graph_error(g, g->ast->model_loc, "too-large", "the model has %.3g parameters", total);
    for (int i = 0; i < p->tensors.n; i++) {
        const Tensor *t = &p->tensors.at[i];
        if (t->kind == T_ROWS && (double)t->width * rows >= MAX_ELEMENTS) {
            graph_error(g, t->loc, "too-large", "a tensor of %.3g rows and width %" PRId64, rows,
                        t->width);
            return;
        }
    }
}

/* ---- what reaches the loss ------------------------------------------------- */

/* Marks the tensors and operators the loss depends on. */
static void mark_live(const Plan *p, bool *live, bool *live_op)
{
    live[p->loss] = live[p->tokens] = live[p->positions] = live[p->targets] = true;
    for (int i = p->ops.n - 1; i >= 0; i--) {
        const Op *op = &p->ops.at[i];
        for (int k = 0; k < op->nout; k++)
            live_op[i] |= live[op->out[k]];
        if (!live_op[i])
            continue;
        for (int k = 0; k < op->nin; k++)
            live[op->in[k]] = true;
        for (int k = 0; k < op->nout; k++)
            live[op->out[k]] = true;
    }
}

/* Parameters that do not reach the loss would never be trained: they are left out. */
static void prune_params(Graph *g, const bool *live)
{
    Plan *p = g->p;
    int n = 0;
    for (int i = 0; i < p->params.n; i++) {
        Param param = p->params.at[i];
        if (!live[param.tensor]) {
            graph_warning(g, param.loc, "unused", "%s does not reach the loss and is left out",
                          param.name);
            continue;
        }
        p->tensors.at[param.tensor].param = n;
        p->params.at[n++] = param;
    }
    p->params.n = n;
}

/* Keeps live ops; to[i] is the new number of op i. */
static int *prune_ops(Plan *p, const bool *live_op)
{
    int *to = NEWN(int, p->ops.n + 1), n = 0;
    for (int i = 0; i < p->ops.n; i++) {
        to[i] = n;
        if (live_op[i])
            p->ops.at[n++] = p->ops.at[i];
    }
    p->ops.n = n;
    return to;
}

static int *prune_tensors(Plan *p, const bool *live, const int *op_to)
{
    int *to = NEWN(int, p->tensors.n), n = 0;
    for (int i = 0; i < p->tensors.n; i++) {
        to[i] = n;
        if (!live[i])
            continue;
        Tensor t = p->tensors.at[i];
        if (t.def != NONE)
            t.def = op_to[t.def];
        p->tensors.at[n++] = t;
    }
    p->tensors.n = n;
    return to;
}

/* Keeps what reaches the loss, in order, under new numbers. */
static void prune(Graph *g)
{
    Plan *p = g->p;
    bool *live_op = NEWN(bool, p->ops.n + 1), *live = NEWN(bool, p->tensors.n);
    mark_live(p, live, live_op);
    prune_params(g, live);
    int *to = prune_tensors(p, live, prune_ops(p, live_op));
    for (int i = 0; i < p->ops.n; i++) {
        for (int k = 0; k < p->ops.at[i].nin; k++)
            p->ops.at[i].in[k] = to[p->ops.at[i].in[k]];
        for (int k = 0; k < p->ops.at[i].nout; k++)
            p->ops.at[i].out[k] = to[p->ops.at[i].out[k]];
    }
    for (int i = 0; i < p->params.n; i++)
        p->params.at[i].tensor = to[p->params.at[i].tensor];
    p->loss = to[p->loss];
    p->tokens = to[p->tokens];
    p->positions = to[p->positions];
    p->targets = to[p->targets];
}

/* ---- the pass --------------------------------------------------------- */

static TensorId add_ids(Graph *g, const char *name, IdsKind ids)
{
    TensorId t = tensor_add(g->p, T_IDS, str(name), (Loc){ 0, 0 }, 1);
    g->p->tensors.at[t].ids = ids;
    scope_put(g->top, str(name), val_tensor(t, (Loc){ 0, 0 }), (Loc){ 0, 0 });
    return t;
}

static void graph_finish(Graph *g)
{
    check_sets(g);
    check_loss(g);
    if (diag_errors() || g->p->loss == NONE)
        return;
    check_objective(g);
    check_sizes(g);
    if (diag_errors())
        return;
    prune(g);
    mark_decay(g);
    rowop_index(g->p);
    g->p->nforward = g->p->ops.n;
}

void graph_build(Plan *p)
{
    Graph g = { .p = p, .ast = p->config->ast, .train = &p->config->train, .prefix = "",
                .repeat = NONE, .turn = NONE, .errors_before = diag_errors() };
    if (!g.ast->model_name) {
        diag_error((Loc){ 0, 0 }, "model", "no model was given");
        return;
    }
    g.top = g.scope = NEW(Scope);
    g.said = map_new();
    g.counts = map_new();
    g.param_of = map_new();
    g.matrix_of = map_new();
    g.dropouts = map_new();
    g.set_done = map_new();
    rowop_index(p);
    p->tokens = add_ids(&g, "tokens", IDS_TOKENS);
    p->positions = add_ids(&g, "positions", IDS_POSITIONS);
    p->targets = add_ids(&g, "targets", IDS_TARGETS);
    model_check_names(&g);
    run(&g, &g.ast->body);
    graph_finish(&g);
}
