/*
 * value.c - one value of a section: numbers with units and the arithmetic on
 * them, words, strings, and words with arguments such as adamw(lr=1e-3).
 */
#include "config.h"

#define AMOUNT_MOST 1e24        // of quantities with a unit

/* ---- values --------------------------------------------------------------- */

static const char *unit_words(Unit unit)
{
    static const char *const words[] = {
        "a plain number", "a size in bytes", "a rate in FLOP/s", "a rate in bytes per second",
        "a time in seconds", "a number of nodes"
    };
    return words[unit];
}

static const char *unit_example(Unit unit)
{
    static const char *const words[] = {
        "8", "40 GB", "312 TFLOP/s", "25 GB/s", "3 us", "32 nodes"
    };
    return words[unit];
}

const char *expr_words(const Expr *e)
{
    switch (e->kind) {
    case E_NUMBER: return "a number";
    case E_QUANTITY: return unit_words(e->unit);
    case E_STRING: return "a string";
    case E_NAME: return str_fmt("the word `%s`", e->text);
    case E_YES: case E_NO: case E_AUTO: return str_fmt("`%s`", e->text);
    case E_LIST: return "a list";
    case E_CALL: return str_fmt("`%s(...)`", e->text);
    case E_INDEX: return "an index";
    default: return "an expression";
    }
}

typedef struct { double v; Unit unit; } Value;

static bool eval(const Expr *e, Value *r);

static bool units_disagree(const Expr *e, Value a, Value b)
{
    diag_error(e->name_loc, "value-unit", "`%c` cannot join %s and %s", e->op, unit_words(a.unit),
               unit_words(b.unit));
    return false;
}

/* The unit of a product; -1: none that has a name. */
static int product_unit(Unit a, Unit b)
{
    if (a == UNIT_NONE || b == UNIT_NONE)
        return (int)(a == UNIT_NONE ? b : a);
    if ((a == UNIT_RATE && b == UNIT_SECONDS) || (a == UNIT_SECONDS && b == UNIT_RATE))
        return UNIT_BYTES;
    return -1;
}

static int quotient_unit(Unit a, Unit b)
{
    if (b == UNIT_NONE)
        return (int)a;
    if (a == b)
        return UNIT_NONE;
    if (a == UNIT_BYTES && b == UNIT_SECONDS)
        return UNIT_RATE;
    return a == UNIT_BYTES && b == UNIT_RATE ? UNIT_SECONDS : -1;
}

static bool eval_binary(const Expr *e, Value *r)
{
    Value a, b;
    int unit;

    if (!eval(e->args.at[0].value, &a) || !eval(e->args.at[1].value, &b))
        return false;
    if (e->op == '*')
        unit = product_unit(a.unit, b.unit);
    else if (e->op == '/')
        unit = quotient_unit(a.unit, b.unit);
    else if (e->op == '^')
        unit = a.unit == UNIT_NONE && b.unit == UNIT_NONE ? UNIT_NONE : -1;
    else
        unit = a.unit == b.unit ? (int)a.unit : -1;
    if (unit < 0)
        return units_disagree(e, a, b);
    if ((e->op == '/' || e->op == '%') && b.v == 0) {
        diag_error(e->loc, "value-range", "division by zero");
        return false;
    }
    r->unit = (Unit)unit;
    r->v = e->op == '+' ? a.v + b.v : e->op == '-' ? a.v - b.v : e->op == '*' ? a.v * b.v
         : e->op == '/' ? a.v / b.v : e->op == '^' ? pow(a.v, b.v)
         : a.v - b.v * floor(a.v / b.v);
    return true;
}

static bool eval_call(const Expr *e, Value *r)
{
    static const char *const names[] = {
        "sqrt", "exp", "log", "floor", "ceil", "minimum", "maximum"
    };
    Value a, b;
    size_t i = 0;

    while (i < 7 && strcmp(e->text, names[i]) != 0)
        i++;
    if (i == 7) {
        const char *near = str_nearest(e->text, names, 7);
        diag_error(e->name_loc, "unknown-word", "there is no function `%s` of numbers", e->text);
        if (near)
            diag_hint("did you mean %s?", near);
        return false;
    }
    int want = i >= 5 ? 2 : 1;
    if (e->args.n != want || e->args.at[want - 1].name) {
        diag_error(e->loc, "value-type", "`%s` takes %s", e->text,
                   plural(want, "number"));
        return false;
    }
    if (!eval(e->args.at[0].value, &a) || (want == 2 && !eval(e->args.at[1].value, &b)))
        return false;
    if ((want == 2 && a.unit != b.unit) || (i < 3 && a.unit != UNIT_NONE)) {
        diag_error(e->loc, "value-unit", "the units do not fit `%s`", e->text);
        return false;
    }
    *r = a;
    switch (i) {
    case 0: r->v = sqrt(a.v); break;
    case 1: r->v = exp(a.v); break;
    case 2: r->v = log(a.v); break;
    case 3: r->v = floor(a.v); break;
    case 4: r->v = ceil(a.v); break;
    case 5: r->v = a.v < b.v ? a.v : b.v; break;
    default: r->v = a.v > b.v ? a.v : b.v;
    }
    return true;
}

/* The number or quantity that `e` stands for; false: an error was reported. */
static bool eval(const Expr *e, Value *r)
{
    switch (e->kind) {
    case E_NUMBER:
    case E_QUANTITY:
        *r = (Value){ e->number, e->unit };
        return true;
    case E_UNARY:
        if (!eval(e->args.at[0].value, r))
            return false;
        r->v = -r->v;
        return true;
    case E_BINARY:
        if (!eval_binary(e, r))
            return false;
        break;
    case E_CALL:
        if (!eval_call(e, r))
            return false;
        break;
    default:
        diag_error(e->loc, "value-type", "a number is expected, not %s", expr_words(e));
        return false;
    }
    if (isfinite(r->v))
        return true;
    diag_error(e->loc, "value-range", "the value is not a finite number");
    return false;
}

/* A number for people: 32, 2.5, 1e+20. */
const char *number_words(double v)
{
    return fabs(v) < 1e15 && v == floor(v) ? str_fmt("%.0f", v) : str_fmt("%.10g", v);
}

static bool not_in_range(const Expr *e, const char *name, const char *must, double v)
{
    diag_error(e->loc, "value-range", "`%s` must be %s, not %s", name, must, number_words(v));
    return false;
}

static bool read_unit(const char *name, const Expr *e, Unit unit, double *v)
{
    Value r;

    if (e->kind == E_STRING || e->kind == E_NAME || e->kind == E_YES || e->kind == E_NO
        || e->kind == E_AUTO || e->kind == E_LIST || e->kind == E_INDEX) {
        diag_error(e->loc, "value-type", "`%s` takes %s, not %s", name,
                   unit == UNIT_NONE ? "a number" : unit_words(unit), expr_words(e));
        return false;
    }
    if (!eval(e, &r))
        return false;
    if (r.unit != unit && !(unit == UNIT_NODES && r.unit == UNIT_NONE)) {
        diag_error(e->loc, "value-unit", "`%s` takes %s, not %s", name, unit_words(unit),
                   unit_words(r.unit));
        if (unit != UNIT_NONE)
            diag_hint("for example `%s`", unit_example(unit));
        return false;
    }
    *v = r.v;
    return true;
}

/* An integer from min to max. */
bool read_whole(const char *name, const Expr *e, Unit unit, double min, double max, double *v)
{
    if (!read_unit(name, e, unit, v))
        return false;
    if (*v != floor(*v))
        return not_in_range(e, name, "a whole number", *v);
    if (*v < min)
        return not_in_range(e, name, str_fmt("at least %s", number_words(min)), *v);
    if (*v > max)
        return not_in_range(e, name, str_fmt("at most %s", number_words(max)), *v);
    return true;
}

bool read_amount(const char *name, const Expr *e, Unit unit, bool zero_too, double *v)
{
    if (!read_unit(name, e, unit, v))
        return false;
    if (*v < 0 || (*v == 0 && !zero_too))
        return not_in_range(e, name, zero_too ? "0 or more" : "more than 0", *v);
    if (*v > AMOUNT_MOST)
        return not_in_range(e, name, "at most 1e24", *v);
    return true;
}

/* "`a`, `b` or `c`" of a list separated by blanks. */
static const char *word_list(const char *words)
{
    Text t = { 0 };

    for (const char *w = words; *w;) {
        int n = (int)strcspn(w, " ");
        const char *next = w + n + strspn(w + n, " ");
        bool last = !*next, second_last = !last && !strchr(next, ' ');
        text_add(&t, "`%.*s`%s", n, w, last ? "" : second_last ? " or " : ", ");
        w = next;
    }
    return t.at;
}

static void hint_near(const char *word, const char *words)
{
    const char *list[64];
    int n = 0;

    for (const char *w = words; *w && n < 64;) {
        size_t len = strcspn(w, " ");
        list[n++] = str_of(w, len);
        w += len + strspn(w + len, " ");
    }
    const char *near = str_nearest(word, list, n);
    if (near)
        diag_hint("did you mean %s?", near);
}

bool is_among(const char *word, const char *words)
{
    size_t n = strlen(word);

    for (const char *w = words; *w;) {
        size_t len = strcspn(w, " ");
        if (len == n && memcmp(w, word, n) == 0)
            return true;
        w += len + strspn(w + len, " ");
    }
    return false;
}

/* The word that `e` is, if it is one of `words`; NULL: an error was reported. */
const char *read_word(const char *name, const Expr *e, const char *words)
{
    bool is_word = e->kind == E_NAME || e->kind == E_YES || e->kind == E_NO || e->kind == E_AUTO
                || e->kind == E_CALL || e->kind == E_STRING;

    if (is_word && e->kind != E_CALL && is_among(e->text, words))
        return e->text;
    diag_error(e->loc, is_word ? "unknown-word" : "value-type", "`%s` can be %s, not %s", name,
               word_list(words), expr_words(e));
    if (is_word)
        hint_near(e->text, words);
    return NULL;
}

const char *read_string(const char *name, const Expr *e)
{
    if (e->kind == E_STRING && *e->text)
        return e->text;
    if (e->kind == E_STRING) {
        diag_error(e->loc, "value-range", "`%s` is an empty string", name);
    } else {
        diag_error(e->loc, "value-type", "`%s` takes a string, not %s", name, expr_words(e));
        if (e->kind == E_NAME)
            diag_hint("write \"%s\"", e->text);
    }
    return NULL;
}

/* The only value of an entry; NULL: there are several, which was reported. */
const Expr *only(const Entry *e)
{
    const Exprs *v = &e->values;

    if (v->n == 1)
        return v->at[0];
    diag_error((Loc){ v->at[1]->loc.start, v->at[v->n - 1]->loc.end }, "value-type",
               "`%s` takes one value; %d are given", e->name, v->n);
    return NULL;
}

const char *path_join(const char *dir, const char *path)
{
    return *path == '/' || strcmp(dir, ".") == 0 ? path : str_fmt("%s/%s", dir, path);
}

/* ---- calls such as adamw(lr=1e-3) ----------------------------------------- */

static void read_param(const Param *p, const Expr *e)
{
    double v;

    if (p->string) {
        const char *s = read_string(p->name, e);
        if (s)
            *p->string = path_join(source_dir(e->loc.start), s);
    } else if (p->whole) {
        if (read_whole(p->name, e, UNIT_NONE, (double)p->least, STEPS_MOST, &v))
            *p->whole = (int64_t)v;
    } else if (read_amount(p->name, e, UNIT_NONE, !p->positive, &v)) {
        if (p->fraction && v >= 1)
            not_in_range(e, p->name, "less than 1", v);
        else
            *p->number = v;
    }
}

static int find_param(const Expr *call, const Arg *a, const Param *params, int n)
{
    Text names = { 0 };

    for (int i = 0; i < n; i++) {
        if (strcmp(params[i].name, a->name) == 0)
            return i;
        text_add(&names, "%s%s", i ? " " : "", params[i].name);
    }
    diag_error(a->name_loc, "unknown-key", "`%s` has no argument `%s`", call->text, a->name);
    if (n == 0)
        diag_hint("`%s` takes no arguments", call->text);
    else if (n < 3)
        diag_hint("`%s` takes %s", call->text, word_list(names.at));
    else
        hint_near(a->name, names.at);
    return -1;
}

/* Reads the arguments of a word that may stand with or without parentheses. */
void read_call(const Expr *e, const Param *params, int n)
{
    bool given[8] = { false };

    for (int i = 0; e->kind == E_CALL && i < e->args.n; i++) {
        const Arg *a = &e->args.at[i];
        int k = a->name ? find_param(e, a, params, n) : i;
        if (k >= n) {
            diag_error(a->value->loc, "value-type", n ? "`%s` takes at most %s"
                       : "`%s` takes no arguments", e->text, plural(n, "argument"));
            return;
        }
        if (k < 0)
            continue;
        if (given[k])
            diag_error(a->name_loc, "duplicate-name", "argument `%s` is given twice", a->name);
        given[k] = true;
        read_param(&params[k], a->value);
    }
    for (int k = 0; k < n; k++) {
        if (params[k].required && !given[k])
            diag_error(e->loc, "missing-key", "`%s` needs `%s`", e->text, params[k].name);
    }
}

/* The word of `e`, with or without arguments, if it is among `words`. */
const char *read_head(const Entry *entry, const Expr **e, const char *words)
{
    *e = only(entry);
    if (!*e)
        return NULL;
    if (((*e)->kind == E_NAME || (*e)->kind == E_CALL) && is_among((*e)->text, words))
        return (*e)->text;
    return read_word(entry->name, *e, words);
}
