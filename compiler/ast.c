/*
 * ast.c - building the tree, reading files and includes, printing the tree.
 *
 * The ast_* functions are called by parser.y. They check only what the tree
 * itself shows: names given twice, `return` in the wrong place, arguments out of
 * order, expressions too deep to walk. Files are read whole.
 */
#define _XOPEN_SOURCE 700
#include "ast.h"

#include <ctype.h>
#include <errno.h>
#include <strings.h>
#include <sys/stat.h>

/* build/prelude.c, made from grammar/prelude.tcube */
extern const char prelude_text[];

int  lexer_lex_init_extra(Parser *p, void **scanner);
int  lexer_lex_destroy(void *scanner);
void *lexer__scan_bytes(const char *text, int n, void *scanner);

/* ---- expressions ---------------------------------------------------------- */

static Expr *expr_new(ExprKind kind, Loc loc)
{
    Expr *e = NEW(Expr);

    e->kind = kind;
    e->loc = loc;
    return e;
}

Expr *ast_leaf(ExprKind kind, Loc loc, const char *text)
{
    Expr *e = expr_new(kind, loc);

    e->text = str(text);
    return e;
}

static const struct { const char *name; Unit unit; double size; } units[] = {
    { "B", UNIT_BYTES, 1 },
    { "KB", UNIT_BYTES, 1e3 }, { "MB", UNIT_BYTES, 1e6 },
    { "GB", UNIT_BYTES, 1e9 }, { "TB", UNIT_BYTES, 1e12 },
    { "KiB", UNIT_BYTES, 1024.0 }, { "MiB", UNIT_BYTES, 1048576.0 },
    { "GiB", UNIT_BYTES, 1073741824.0 }, { "TiB", UNIT_BYTES, 1099511627776.0 },
    { "FLOP/s", UNIT_FLOPS, 1 }, { "GFLOP/s", UNIT_FLOPS, 1e9 },
    { "TFLOP/s", UNIT_FLOPS, 1e12 }, { "PFLOP/s", UNIT_FLOPS, 1e15 },
    { "B/s", UNIT_RATE, 1 }, { "KB/s", UNIT_RATE, 1e3 }, { "MB/s", UNIT_RATE, 1e6 },
    { "GB/s", UNIT_RATE, 1e9 }, { "TB/s", UNIT_RATE, 1e12 }, { "Kbit/s", UNIT_RATE, 1e3 / 8 },
    { "Mbit/s", UNIT_RATE, 1e6 / 8 }, { "Gbit/s", UNIT_RATE, 1e9 / 8 },
    { "Tbit/s", UNIT_RATE, 1e12 / 8 },
    { "ns", UNIT_SECONDS, 1e-9 }, { "us", UNIT_SECONDS, 1e-6 },
    { "ms", UNIT_SECONDS, 1e-3 }, { "s", UNIT_SECONDS, 1 },
    { "node", UNIT_NODES, 1 }, { "nodes", UNIT_NODES, 1 },
};

/* Data sheets also write bits and bytes a second as Gb/s, Gbps, GBps: a letter, and a
 * factor of 8. */
static const char *rate_near(const char *word)
{
    char k = (char)toupper((unsigned char)word[0]), b = k ? word[1] : 0;

    if (!k || !strchr("KMGT", k) || (b != 'b' && b != 'B') ||
        (strcasecmp(word + 2, "/s") && strcasecmp(word + 2, "ps")))
        return NULL;
    return b == 'B' ? str_fmt("`%cB/s`", k)
                    : str_fmt("`%cbit/s` for bits or `%cB/s` for bytes", k, k);
}

const char *unit_near(const char *word)
{
    static const char *const times[][2] = { { "sec", "s" }, { "msec", "ms" }, { "usec", "us" },
                                            { "nsec", "ns" } };

    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        if (strcasecmp(word, times[i][0]) == 0)
            return str_fmt("`%s`", times[i][1]);
    }
    const char *rate = rate_near(word);
    if (rate)
        return rate;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcasecmp(word, units[i].name) == 0)
            return str_fmt("`%s`", units[i].name);
    }
    return NULL;
}

/* Value of the digits at `text`; sets *length to their number of bytes. */
static double digits_value(Loc loc, const char *text, size_t n, size_t *length, bool *integral)
{
    char copy[512];
    size_t k = 0, i = 0;

    *integral = true;
    for (; i < n; i++) {
        char c = text[i];
        bool sign = (c == '+' || c == '-') && i > 0 && (text[i - 1] == 'e' || text[i - 1] == 'E');
        if (!strchr("0123456789_.eE", c) && !sign)
            break;
        if (c == '.' || c == 'e' || c == 'E')
            *integral = false;
        if (c != '_' && k < sizeof copy - 1)
            copy[k++] = c;
    }
    copy[k] = '\0';
    *length = i;
    double v = strtod(copy, NULL);
    if (k == sizeof copy - 1)
        diag_error(loc, "syntax", "the number has more than %zu digits", k - 1);
    else if (!isfinite(v))
        diag_error(loc, "syntax", "the number is too large");
    else if (*integral && v >= 9007199254740992.0)
        diag_error(loc, "syntax", "the integer is 2^53 or more and would not be exact");
    else
        return v;
    return 1;
}

/* A number, or a quantity in base units. */
Expr *ast_number(Parser *p, Loc loc, const char *text, size_t n)
{
    Expr *e = expr_new(E_NUMBER, loc);
    size_t length;

    (void)p;
    e->number = digits_value(loc, text, n, &length, &e->integral);
    e->text = str_of(text, n < 512 ? n : 512);
    while (length < n && (text[length] == ' ' || text[length] == '\t'))
        length++;
    if (length == n)
        return e;
    e->kind = E_QUANTITY;
    e->integral = false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strlen(units[i].name) == n - length
            && memcmp(units[i].name, text + length, n - length) == 0) {
            e->unit = units[i].unit;
            e->number *= units[i].size;
            return e;
        }
    }
    bug("lexer: unit of \"%.*s\"", (int)n, text);
}

static void take_depth(Expr *e)
{
    for (int i = 0; i < e->args.n; i++) {
        if (e->args.at[i].value->depth >= e->depth)
            e->depth = e->args.at[i].value->depth + 1;
    }
}

/* `e`, or its first operand with an error where trees would get too deep. */
static Expr *bounded(Parser *p, Expr *e)
{
    take_depth(e);
    if (e->depth <= EXPR_DEPTH)
        return e;
    if (!p->too_deep)
        diag_error(e->name_loc.end ? e->name_loc : e->loc, "syntax",
                   "the expression has more than %d operators in a row", EXPR_DEPTH);
    p->too_deep = true;
    return e->args.at[0].value;
}

static void add_operand(Expr *e, Expr *value)
{
    Arg a = { NULL, { 0, 0 }, value };

    vec_add(&e->args, a);
}

Expr *ast_list(Loc loc, const Exprs *values)
{
    Expr *e = expr_new(E_LIST, loc);

    for (int i = 0; values && i < values->n; i++)
        add_operand(e, values->at[i]);
    take_depth(e);
    return e;
}

Expr *ast_call(Parser *p, Loc loc, Name callee, const Args *args)
{
    Expr *e = expr_new(E_CALL, loc);
    Loc named = { 0, 0 };

    e->text = callee.name;
    e->name_loc = callee.loc;
    if (args)
        e->args = *args;
    for (int i = 0; i < e->args.n; i++) {
        Arg *a = &e->args.at[i];
        if (a->name) {
            named = named.end ? named : a->name_loc;
        } else if (named.end) {
            diag_error(a->value->loc, "syntax", "an argument without a name follows a named one");
            diag_note(named, "the first named argument stands here");
        }
    }
    if (e->args.n == 0)
        return e;
    return bounded(p, e);
}

Expr *ast_index(Parser *p, Loc loc, Expr *list, Expr *index)
{
    Expr *e = expr_new(E_INDEX, loc);

    add_operand(e, list);
    add_operand(e, index);
    return bounded(p, e);
}

Expr *ast_unary(Parser *p, Loc loc, Loc op, Expr *a)
{
    Expr *e = expr_new(E_UNARY, loc);

    e->op = '-';
    e->name_loc = op;
    add_operand(e, a);
    return bounded(p, e);
}

Expr *ast_binary(Parser *p, Loc loc, char op, Loc op_loc, Expr *a, Expr *b)
{
    Expr *e = expr_new(E_BINARY, loc);

    e->op = op;
    e->name_loc = op_loc;
    add_operand(e, a);
    add_operand(e, b);
    return bounded(p, e);
}

Expr *ast_parens(Loc loc, Expr *e)
{
    e->loc = loc;
    return e;
}

/* ---- lists ---------------------------------------------------------------- */

static void duplicate(Loc loc, const char *kind, const char *name, Loc first)
{
    diag_error(loc, "duplicate-name", "%s `%s` is given twice", kind, name);
    diag_note(first, "it is given here first");
}

Args *ast_args(Args *args, Name name, Expr *value)
{
    Arg a = { name.name, name.loc, value };

    if (!args)
        args = NEW(Args);
    for (int i = 0; name.name && i < args->n; i++) {
        if (args->at[i].name == name.name) {
            duplicate(name.loc, "argument", name.name, args->at[i].name_loc);
            break;
        }
    }
    vec_add(args, a);
    return args;
}

Names *ast_names(Names *names, Name name)
{
    if (!names)
        names = NEW(Names);
    for (int i = 0; i < names->n; i++) {
        if (names->at[i].name == name.name) {
            duplicate(name.loc, "name", name.name, names->at[i].loc);
            break;
        }
    }
    vec_add(names, name);
    return names;
}

Exprs *ast_exprs(Exprs *exprs, Expr *e)
{
    if (!exprs)
        exprs = NEW(Exprs);
    vec_add(exprs, e);
    return exprs;
}

/* ---- statements ----------------------------------------------------------- */

static Body *add_statement(Body *b, Loc loc, Stmt s)
{
    Stmt *copy = NEW(Stmt);

    *copy = s;
    copy->loc = loc;
    if (b->return_loc.end && !b->late.end)
        b->late = loc;
    vec_add(&b->stmts, copy);
    return b;
}

static void no_blocks(const Body *b)
{
    for (int i = 0; i < b->blocks.n; i++) {
        diag_error(b->blocks.at[i].loc, "syntax", "block `%s` stands inside another body",
                   b->blocks.at[i].name);
        diag_hint("blocks stand directly in the model");
    }
}

static void no_return(const Body *b)
{
    if (b->return_loc.end) {
        diag_error(b->return_loc, "syntax", "`return` stands outside of a block");
        diag_hint("the model's result is what `loss` is given; a repeat changes outer names");
    }
}

Body *ast_assign(Body *b, Loc loc, const Names *names, Expr *value)
{
    return add_statement(b, loc, (Stmt){ .names = *names, .value = value });
}

Body *ast_return(Body *b, Loc loc, const Exprs *results)
{
    if (b->return_loc.end) {
        diag_error(loc, "syntax", "a block returns once");
        diag_note(b->return_loc, "it returns here first");
        return b;
    }
    b->results = *results;
    b->return_loc = loc;
    return b;
}

Body *ast_repeat(Body *b, Loc loc, Name index, Expr *count, const Body *inner)
{
    Stmt s = { .is_repeat = true, .value = count, .body = inner->stmts };

    no_blocks(inner);
    no_return(inner);
    vec_add(&s.names, index);
    return add_statement(b, loc, s);
}

Body *ast_block(Body *b, Name name, const Names *params, const Body *inner)
{
    Block block = { .name = name.name, .loc = name.loc, .params = *params, .body = inner->stmts,
                    .results = inner->results };

    no_blocks(inner);
    if (!inner->return_loc.end) {
        diag_error(name.loc, "syntax", "block `%s` returns nothing", name.name);
        diag_hint("its last statement is `return` and what the block gives");
    }
    if (inner->late.end) {
        diag_error(inner->late, "syntax", "a statement follows the block's `return`");
        diag_note(inner->return_loc, "the block returns here");
    }
    for (int i = 0; i < b->blocks.n; i++) {
        if (b->blocks.at[i].name == name.name) {
            duplicate(name.loc, "block", name.name, b->blocks.at[i].loc);
            return b;
        }
    }
    vec_add(&b->blocks, block);
    return b;
}

/* ---- what stands outside --------------------------------------------------- */

Section *ast_entry(Section *s, Name key, const Exprs *values)
{
    Entry e = { key.name, key.loc, *values };

    vec_add(&s->entries, e);
    return s;
}

void ast_section(Parser *p, const char *kind, Loc kind_loc, Name name, Section *s)
{
    s->kind = str(kind);
    s->name = name.name;
    s->loc = name.name ? (Loc){ kind_loc.start, name.loc.end } : kind_loc;
    bool is_train = strcmp(kind, "train") == 0;
    if (is_train && name.name) {
        diag_error(name.loc, "syntax", "a train section has no name");
    } else if (!is_train && !name.name && strcmp(kind, "plan") != 0) {
        diag_error(kind_loc, "syntax", "a %s needs a name", kind);
        diag_hint("write `%s NAME { ... }`", kind);
    }
    vec_add(&p->ast->sections, *s);
}

void ast_model(Parser *p, Name name, const Body *body)
{
    Ast *ast = p->ast;

    no_return(body);
    if (ast->model_name) {
        diag_error(name.loc, "duplicate-section", "a second model, `%s`, is given", name.name);
        diag_note(ast->model_loc, "the first one, `%s`, stands here", ast->model_name);
        return;
    }
    ast->model_name = name.name;
    ast->model_loc = name.loc;
    for (int i = 0; i < body->blocks.n; i++)
        vec_add(&ast->blocks, body->blocks.at[i]);
    ast->body = body->stmts;
}

static bool in_prelude(Loc loc)
{
    return source_name(loc.start) == source_name(PRELUDE);
}

void ast_fn(Parser *p, Name name, const Args *params, const Args *vectors, Expr *body)
{
    Fn fn = { .name = name.name, .loc = name.loc, .body = body };

    if (params)
        fn.params = *params;
    if (vectors)
        fn.vectors = *vectors;
    for (int i = 0; i < fn.vectors.n; i++) {
        for (int j = 0; j < fn.params.n; j++) {
            if (fn.params.at[j].name == fn.vectors.at[i].name)
                duplicate(fn.vectors.at[i].name_loc, "argument", fn.vectors.at[i].name,
                          fn.params.at[j].name_loc);
        }
    }
    for (int i = 0; i < p->ast->fns.n; i++) {
        Fn *old = &p->ast->fns.at[i];
        if (old->name != name.name)
            continue;
        if (in_prelude(old->loc))
            *old = fn;
        else
            duplicate(name.loc, "fn", name.name, old->loc);
        return;
    }
    vec_add(&p->ast->fns, fn);
}

/* ---- files ---------------------------------------------------------------- */

enum { FILE_LARGEST = 64 << 20, INCLUDE_DEEPEST = 50 };

typedef struct { const char *real; bool is_open; Loc included; } File;
static VEC(File) files;         // all that were read, in order
static int depth;               // of includes

static bool run_parser(Parser *p)
{
    if (lexer_lex_init_extra(p, &p->scanner) != 0)
        die(EXIT_WORLD, "out of memory");
    lexer__scan_bytes(source_text(p->at), (int)(p->end - p->at), p->scanner);
    bool fine = parser_run(p);
    lexer_lex_destroy(p->scanner);
    return fine;
}

static void parse_source(Ast *ast, const char *name, const char *text, size_t n)
{
    Parser p = { .ast = ast };

    p.at = source_add(name, text, n);
    p.end = p.at + (uint32_t)n;
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)     // byte order mark
        p.at += 3;
    run_parser(&p);
}

/* The whole file; NULL and a message at `loc` if it cannot be read. */
static char *read_file(Loc loc, const char *path, size_t *n)
{
    struct stat st;
    FILE *f = fopen(path, "rb");

    if (!f) {
        diag_error(loc, "file", "could not open \"%s\": %s", path, strerror(errno));
        return NULL;
    }
    if (fstat(fileno(f), &st) == 0 && S_ISDIR(st.st_mode)) {
        diag_error(loc, "file", "\"%s\" is a folder", path);
        fclose(f);
        return NULL;
    }
    size_t cap = 1 << 16;
    char *text = malloc(cap);
    *n = 0;
    for (size_t got; text && *n <= FILE_LARGEST; *n += got) {
        if (*n == cap) {
            char *larger = realloc(text, cap *= 2);
            if (!larger)
                free(text);
            text = larger;
            if (!text)
                break;
        }
        got = fread(text + *n, 1, cap - *n, f);
        if (got == 0)
            break;
    }
    if (!text)
        die(EXIT_WORLD, "out of memory");
    const char *reason = ferror(f) ? strerror(errno) : NULL;
    fclose(f);
    char *zero = memchr(text, '\0', *n);
    if (reason)
        diag_error(loc, "file", "could not read \"%s\": %s", path, reason);
    else if (*n > FILE_LARGEST)
        diag_error(loc, "file", "\"%s\" is larger than %d MiB", path, FILE_LARGEST >> 20);
    else if (zero)
        diag_error(loc, "file", "\"%s\" is not text: byte %td is zero", path, zero - text);
    else
        return text;
    free(text);
    return NULL;
}

static void parse_file(Ast *ast, Loc loc, const char *path)
{
    char *resolved = realpath(path, NULL);
    const char *real = str(resolved ? resolved : path);
    size_t n;

    free(resolved);
    for (int i = 0; i < files.n; i++) {
        if (files.at[i].real != real)
            continue;
        if (files.at[i].is_open) {
            diag_error(loc, "include-cycle", "\"%s\" includes itself", path);
            for (int j = i + 1; j < files.n; j++) {
                if (files.at[j].is_open)
                    diag_note(files.at[j].included, "by way of this include");
            }
        }
        return;                 // it was read before
    }
    if (depth >= INCLUDE_DEEPEST) {
        diag_error(loc, "include-cycle", "includes are nested more than %d deep", INCLUDE_DEEPEST);
        return;
    }
    char *text = read_file(loc, path, &n);
    if (!text)
        return;
    File file = { real, true, loc };
    int i = files.n;
    vec_add(&files, file);
    depth++;
    parse_source(ast, path, text, n);
    depth--;
    files.at[i].is_open = false;
    free(text);
}

void ast_include(Parser *p, Loc loc, const char *path)
{
    const char *dir = source_dir(loc.start);

    if (*path == '\0')
        diag_error(loc, "file", "the name of the file is empty");
    else if (*path == '/' || strcmp(dir, ".") == 0)
        parse_file(p->ast, loc, path);
    else
        parse_file(p->ast, loc, str_fmt("%s/%s", dir, path));
}

Ast *parse_files(const Inputs *in)
{
    Ast *ast = NEW(Ast);
    int errors = diag_errors();

    files.n = 0;                // verify and the tests read files again
    parse_source(ast, "prelude.tcube", prelude_text, strlen(prelude_text));
    if (diag_errors() > errors)
        bug("the prelude has errors");
    for (int i = 0; i < in->nfiles; i++)
        parse_file(ast, (Loc){ 0, 0 }, in->files[i]);
    return ast;
}

/* ---- expressions out of context ------------------------------------------- */

bool parse_values(uint32_t start, uint32_t end, Exprs *values)
{
    Ast none = { 0 };
    Parser p = { .ast = &none, .at = start, .end = end, .wants_values = true, .values = values };

    return run_parser(&p);
}

Expr *parse_expr(uint32_t start, uint32_t end)
{
    Exprs values = { 0 };

    if (!parse_values(start, end, &values))
        return NULL;
    if (values.n == 1)
        return values.at[0];
    diag_error((Loc){ values.at[0]->loc.start, values.at[values.n - 1]->loc.end }, "syntax",
               "one expression is expected, not %d", values.n);
    return NULL;
}

/* ---- printing ------------------------------------------------------------- */

static void print_expr(const Expr *e, int outer, FILE *f);

static void print_args(const Args *args, FILE *f)
{
    for (int i = 0; i < args->n; i++) {
        const Arg *a = &args->at[i];
        fprintf(f, "%s%s%s", i ? ", " : "", a->name ? a->name : "", a->name && a->value ? "=" : "");
        if (a->value)
            print_expr(a->value, 0, f);
    }
}

/* How tightly an expression binds: the larger, the tighter. */
static int binding(const Expr *e)
{
    if (e->kind == E_UNARY)
        return 3;
    if (e->kind != E_BINARY)
        return 5;
    return e->op == '+' || e->op == '-' ? 1 : e->op == '^' ? 4 : 2;
}

static void print_binary(const Expr *e, FILE *f)
{
    int own = binding(e);
    bool right = e->op == '^';

    print_expr(e->args.at[0].value, own + right, f);
    fprintf(f, right ? "%c" : " %c ", e->op);
    // an exponent may begin with a minus
    print_expr(e->args.at[1].value, right ? 3 : own + 1, f);
}

/* In parentheses where it binds less tightly than `outer`. */
static void print_expr(const Expr *e, int outer, FILE *f)
{
    bool parens = binding(e) < outer;

    fputs(parens ? "(" : "", f);
    switch (e->kind) {
    case E_STRING:
        fprintf(f, "\"%s\"", e->text);
        break;
    case E_LIST:
        fputc('[', f);
        print_args(&e->args, f);
        fputc(']', f);
        break;
    case E_CALL:
        fprintf(f, "%s(", e->text);
        print_args(&e->args, f);
        fputc(')', f);
        break;
    case E_INDEX:
        print_expr(e->args.at[0].value, 5, f);
        fputc('[', f);
        print_expr(e->args.at[1].value, 0, f);
        fputc(']', f);
        break;
    case E_UNARY:
        fputc('-', f);
        print_expr(e->args.at[0].value, 3, f);
        break;
    case E_BINARY:
        print_binary(e, f);
        break;
    default:
        fputs(e->text, f);
    }
    fputs(parens ? ")" : "", f);
}

static void print_exprs(const Exprs *list, FILE *f)
{
    for (int i = 0; i < list->n; i++) {
        fputs(i ? ", " : "", f);
        print_expr(list->at[i], 0, f);
    }
}

static void print_names(const Names *names, FILE *f)
{
    for (int i = 0; i < names->n; i++)
        fprintf(f, "%s%s", i ? ", " : "", names->at[i].name);
}

static void print_stmts(const Stmts *stmts, int indent, FILE *f)
{
    for (int i = 0; i < stmts->n; i++) {
        const Stmt *s = stmts->at[i];
        fprintf(f, "%*s%s", indent, "", s->is_repeat ? "repeat " : "");
        print_names(&s->names, f);
        fputs(s->is_repeat ? " in " : " = ", f);
        print_expr(s->value, 0, f);
        fputs(s->is_repeat ? " {\n" : "\n", f);
        if (s->is_repeat) {
            print_stmts(&s->body, indent + 4, f);
            fprintf(f, "%*s}\n", indent, "");
        }
    }
}

static void print_model(const Ast *ast, FILE *f)
{
    fprintf(f, "model %s {\n", ast->model_name);
    for (int i = 0; i < ast->blocks.n; i++) {
        const Block *b = &ast->blocks.at[i];
        fprintf(f, "    block %s(", b->name);
        print_names(&b->params, f);
        fputs(") {\n", f);
        print_stmts(&b->body, 8, f);
        fputs("        return ", f);
        print_exprs(&b->results, f);
        fputs("\n    }\n", f);
    }
    print_stmts(&ast->body, 4, f);
    fputs("}\n", f);
}

void print_ast(const Ast *ast, FILE *f)
{
    for (int i = 0; i < ast->fns.n; i++) {
        const Fn *fn = &ast->fns.at[i];
        if (in_prelude(fn->loc))
            continue;
        fprintf(f, "fn %s(", fn->name);
        print_args(&fn->params, f);
        fputs(fn->vectors.n ? "; " : "", f);
        print_args(&fn->vectors, f);
        fputs(") = ", f);
        print_expr(fn->body, 0, f);
        fputc('\n', f);
    }
    if (ast->model_name)
        print_model(ast, f);
    for (int i = 0; i < ast->sections.n; i++) {
        const Section *s = &ast->sections.at[i];
        fprintf(f, "%s%s%s {\n", s->kind, s->name ? " " : "", s->name ? s->name : "");
        for (int j = 0; j < s->entries.n; j++) {
            fprintf(f, "    %s = ", s->entries.at[j].name);
            print_exprs(&s->entries.at[j].values, f);
            fputc('\n', f);
        }
        fputs("}\n", f);
    }
}
