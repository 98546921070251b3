/*
 * parser.y - the grammar, the tokens it sees, and the words of syntax errors.
 *
 * Actions build nodes and look nothing up. next_token stands between flex and
 * bison: it drops newlines that are white space, ends every statement with
 * T_NEWLINE (also before a `}` and at the end of the file, so the rules below
 * need one kind of statement only), closes blocks that the user left open, and
 * after an error skips to the end of the statement, over whole { } bodies.
 */
%code top {
#define _POSIX_C_SOURCE 200809L
#include <ctype.h>
}
%code requires {
#include "ast.h"
}

%define api.pure full
%define api.prefix {parser_}
%define api.token.prefix {T_}
%define api.value.type union
%define api.location.type {Loc}
%define parse.error custom
%define parse.lac full
%define parse.trace
%locations
%expect 0
%param {Parser *p}
%initial-action { @$ = (Loc){ p->at, p->at }; }

%token END 0            "the end of the file"
%token START_FILE       "a file"
%token START_VALUES     "a value"
%token WRONG            "a wrong character"
%token NEWLINE          "the end of the line"
%token <Expr *> NUMBER  "a number"
%token <const char *> STRING "a string"
%token <const char *> NAME   "a name"
%token INCLUDE          "`include`"
%token FN               "`fn`"
%token MODEL            "`model`"
%token BLOCK            "`block`"
%token REPEAT           "`repeat`"
%token IN               "`in`"
%token RETURN           "`return`"
%token TRAIN            "`train`"
%token DEVICE           "`device`"
%token CLUSTER          "`cluster`"
%token PLAN             "`plan`"
%token YES              "`yes`"
%token NO               "`no`"
%token AUTO             "`auto`"
%token '+' "`+`" '-' "`-`" '*' "`*`" '/' "`/`" '%' "`%`" '^' "`^`"
%token '=' "`=`" ',' "`,`" ';' "`;`"
%token '(' "`(`" ')' "`)`" '[' "`[`" ']' "`]`" '{' "`{`" '}' "`}`"

%left '+' '-'
%left '*' '/' '%'
%precedence NEGATIVE
%right '^'
%precedence '['

%nterm <Name> name opt_name
%nterm <Names *> names
%nterm <Body *> body
%nterm <Section *> entries
%nterm <const char *> kind
%nterm <Args *> params opt_params vectors args arg_list
%nterm <Exprs *> exprs
%nterm <Expr *> expr

%printer { fprintf(yyo, "%s", $$ ? $$ : ""); } <const char *>
%printer { fprintf(yyo, "%s", $$.name ? $$.name : "(none)"); } <Name>
%printer { fprintf(yyo, "%d names", $$ ? $$->n : 0); } <Names *>
%printer { fprintf(yyo, "%d arguments", $$ ? $$->n : 0); } <Args *>
%printer { fprintf(yyo, "%d expressions", $$ ? $$->n : 0); } <Exprs *>
%printer { fprintf(yyo, "%s", source_where($$->loc)); } <Expr *>
%printer { fprintf(yyo, "%d statements", $$->stmts.n); } <Body *>
%printer { fprintf(yyo, "%d entries", $$->entries.n); } <Section *>

%code {
static int next_token(PARSER_STYPE *value, Loc *loc, Parser *p);
static void parser_error(const Loc *loc, Parser *p, const char *message);
int lexer_lex(PARSER_STYPE *value, Loc *loc, void *scanner);
#define parser_lex next_token
#define YYMAXDEPTH 20000
#define YYLLOC_DEFAULT(cur, rhs, n) \
    ((cur) = (n) ? (Loc){ YYRHSLOC(rhs, 1).start, YYRHSLOC(rhs, n).end } \
                 : (Loc){ YYRHSLOC(rhs, 0).end, YYRHSLOC(rhs, 0).end })
}

%%

start:
    START_FILE file
  | START_VALUES exprs end              { *p->values = *$exprs; }
  ;

file:
    %empty
  | file end
  | file line end                       { yyerrok; }
  | file braced
  | file error end                      { yyerrok; }
  ;

end: NEWLINE | ';' ;

line:
    INCLUDE STRING                      { ast_include(p, @STRING, $STRING); }
  | FN name '(' opt_params vectors ')' '=' expr
                                        { ast_fn(p, $name, $opt_params, $vectors, $expr); }
  | MODEL error
  | kind error
  ;

braced:
    MODEL name lines '{' body '}'       { ast_model(p, $name, $body); }
  | MODEL lost '{' body '}'
  | kind opt_name lines '{' entries '}' { ast_section(p, $kind, @kind, $opt_name, $entries); }
  | kind lost '{' entries '}'
  ;

lost: error                             { yyerrok; } ;
lines: %empty | lines NEWLINE ;

kind:
    TRAIN                               { $$ = "train"; }
  | DEVICE                              { $$ = "device"; }
  | CLUSTER                             { $$ = "cluster"; }
  | PLAN                                { $$ = "plan"; }
  ;

entries:
    %empty                              { $$ = NEW(Section); }
  | entries end
  | entries name '=' exprs end          { $$ = ast_entry($1, $name, $exprs); }
  | entries error end                   { yyerrok; }
  ;

body:
    %empty                              { $$ = NEW(Body); }
  | body end
  | body names '=' expr end
        { $$ = ast_assign($1, (Loc){ @names.start, @expr.end }, $names, $expr); }
  | body RETURN exprs end
        { $$ = ast_return($1, (Loc){ @RETURN.start, @exprs.end }, $exprs); }
  | body REPEAT name IN expr lines '{' body '}'
        { $$ = ast_repeat($1, (Loc){ @REPEAT.start, @expr.end }, $name, $expr, $8); }
  | body BLOCK name '(' names ')' lines '{' body '}'
        { $$ = ast_block($1, $name, $names, $9); }
  | body REPEAT lost '{' body '}'
  | body BLOCK lost '{' body '}'
  | body REPEAT error end               { yyerrok; }
  | body BLOCK error end                { yyerrok; }
  | body error end                      { yyerrok; }
  ;

name: NAME                              { $$ = (Name){ $NAME, @NAME }; } ;
opt_name: %empty { $$ = (Name){ NULL, @$ }; } | name ;

names:
    name                                { $$ = ast_names(NULL, $name); }
  | names ',' name                      { $$ = ast_names($1, $name); }
  ;

opt_params: %empty { $$ = NULL; } | params ;
vectors: %empty { $$ = NULL; } | ';' params { $$ = $params; } ;
params:
    name                                { $$ = ast_args(NULL, $name, NULL); }
  | name '=' expr                       { $$ = ast_args(NULL, $name, $expr); }
  | params ',' name                     { $$ = ast_args($1, $name, NULL); }
  | params ',' name '=' expr            { $$ = ast_args($1, $name, $expr); }
  ;

args: %empty { $$ = NULL; } | arg_list ;
arg_list:
    expr                                { $$ = ast_args(NULL, (Name){ NULL, @$ }, $expr); }
  | name '=' expr                       { $$ = ast_args(NULL, $name, $expr); }
  | arg_list ',' expr                   { $$ = ast_args($1, (Name){ NULL, @expr }, $expr); }
  | arg_list ',' name '=' expr          { $$ = ast_args($1, $name, $expr); }
  ;

exprs:
    expr                                { $$ = ast_exprs(NULL, $expr); }
  | exprs ',' expr                      { $$ = ast_exprs($1, $expr); }
  ;

expr:
    NUMBER
  | STRING                              { $$ = ast_leaf(E_STRING, @$, $STRING); }
  | name                                { $$ = ast_leaf(E_NAME, @$, $name.name); }
  | YES                                 { $$ = ast_leaf(E_YES, @$, "yes"); }
  | NO                                  { $$ = ast_leaf(E_NO, @$, "no"); }
  | AUTO                                { $$ = ast_leaf(E_AUTO, @$, "auto"); }
  | '[' ']'                             { $$ = ast_list(@$, NULL); }
  | '[' exprs ']'                       { $$ = ast_list(@$, $exprs); }
  | '(' expr ')'                        { $$ = ast_parens(@$, $2); }
  | name '(' args ')'                   { $$ = ast_call(p, @$, $name, $args); }
  | expr '[' expr ']'                   { $$ = ast_index(p, @$, $1, $3); }
  | '-' expr %prec NEGATIVE             { $$ = ast_unary(p, @$, @1, $2); }
  | expr '+' expr                       { $$ = ast_binary(p, @$, '+', @2, $1, $3); }
  | expr '-' expr                       { $$ = ast_binary(p, @$, '-', @2, $1, $3); }
  | expr '*' expr                       { $$ = ast_binary(p, @$, '*', @2, $1, $3); }
  | expr '/' expr                       { $$ = ast_binary(p, @$, '/', @2, $1, $3); }
  | expr '%' expr                       { $$ = ast_binary(p, @$, '%', @2, $1, $3); }
  | expr '^' expr                       { $$ = ast_binary(p, @$, '^', @2, $1, $3); }
  ;

%%

/* ---- what a token is ------------------------------------------------------ */

static bool is_operator(int t)
{
    return t && t < 128 && strchr("+-*/%^", t);
}

static bool is_keyword(int t)
{
    return t >= T_INCLUDE && t <= T_AUTO;
}

/* Words that begin something outside of any block. */
static bool is_outer(int t)
{
    return t == T_INCLUDE || t == T_FN || t == T_MODEL || (t >= T_TRAIN && t <= T_PLAN);
}

/* Words whose statement has a body in braces. */
static bool has_body(int t)
{
    return (is_outer(t) && t != T_INCLUDE && t != T_FN) || t == T_BLOCK || t == T_REPEAT;
}

static bool ends_statement(int t)
{
    return t == T_NEWLINE || t == ';' || t == '{' || t == '}' || t == T_START_FILE
        || t == T_START_VALUES;
}

/* ---- brackets ------------------------------------------------------------- */

static char innermost(const Parser *p)
{
    return p->open.n ? p->open.at[p->open.n - 1].bracket : 0;
}

static bool in_parens(const Parser *p)
{
    return innermost(p) == '(' || innermost(p) == '[';
}

static bool in_braces(const Parser *p)
{
    for (int i = 0; i < p->open.n; i++) {
        if (p->open.at[i].bracket == '{')
            return true;
    }
    return false;
}

static void leave_parens(Parser *p)
{
    while (in_parens(p))
        p->open.n--;
}

static void open_bracket(Parser *p, int t, Loc loc)
{
    Open o = { (char)t, loc };

    if (p->open.n < NEST_DEPTH) {
        vec_add(&p->open, o);
        return;
    }
    diag_error(loc, "syntax", "brackets are nested more than %d deep", NEST_DEPTH);
    p->stopped = true;
}

static void close_bracket(Parser *p, int t)
{
    char opening = t == ')' ? '(' : t == ']' ? '[' : '{';

    if (t == '}')
        leave_parens(p);
    if (innermost(p) != opening)
        return;
    p->popped = p->open.at[--p->open.n];
    p->closed = true;
}

/* ---- words of messages ---------------------------------------------------- */

/* A token as it is named behind "before". */
static const char *token_words(int t, Loc loc)
{
    const char *text = source_text(loc.start);
    int n = (int)(loc.end - loc.start);

    if (t == T_NEWLINE)
        t = *text == '}' ? '}' : *text ? T_NEWLINE : T_END;
    if (t == T_END)
        return strncmp(source_name(loc.start), "--", 2) == 0 ? "the end of the option"
                                                             : "the end of the file";
    if (t == T_NEWLINE)
        return "the end of the line";
    if (n > 40)
        return str_fmt("`%.*s...`", 37, text);
    return str_fmt("`%.*s`", n, text);
}

static bool newline_between(uint32_t start, uint32_t end)
{
    const char *text = source_text(start);

    return end > start && memchr(text, '\n', end - start);
}

static void note_open(const Parser *p)
{
    if (p->open.n) {
        Open *o = &p->open.at[p->open.n - 1];
        diag_note(o->loc, "to close this `%c`", o->bracket);
    }
}

/* The expected tokens as a short list in words. */
typedef struct { bool has[YYNTOKENS]; const char *words; int n; } Expected;

static bool expects(const Expected *e, const char *alias)
{
    for (int i = 0; i < YYNTOKENS; i++) {
        if (e->has[i] && strcmp(yysymbol_name((yysymbol_kind_t)i), alias) == 0)
            return true;
    }
    return false;
}

static void add_words(Expected *e, const char *words)
{
    static const char *const joints[] = { "", " or ", ", " };

    if (e->n == 0)
        e->words = words;
    else
        e->words = str_fmt("%s%s%s", words, joints[e->n == 1 ? 1 : 2], e->words);
    e->n++;
}

/* Last words first: each is put before the others. */
static void describe(Expected *e)
{
    static const char *const marks[] = { "`{`", "`=`", "`]`", "`)`", "`;`", "`,`", "`in`" };
    bool expr = e->has[YYSYMBOL_NUMBER], end = e->has[YYSYMBOL_NEWLINE];
    bool brace = expects(e, "`{`");

    if (e->has[YYSYMBOL_MODEL] || e->has[YYSYMBOL_RETURN]) {
        add_words(e, e->has[YYSYMBOL_MODEL]
                  ? "a model, `train`, `device`, `cluster`, `plan`, `fn` or `include`"
                  : "a statement");
        return;
    }
    if (end && e->has[YYSYMBOL_NAME] && !expr) {
        add_words(e, "a key");
        return;
    }
    if (e->has[YYSYMBOL_YYEOF])
        add_words(e, "the end of the value");
    if (end && !brace)
        add_words(e, "the end of the line");
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        // `;` and `,` where a line may end; `=` behind an argument
        bool spare = (end && !brace && (i == 4 || i == 5)) || (i == 1 && expects(e, marks[3]));
        if (expects(e, marks[i]) && !spare)
            add_words(e, marks[i]);
    }
    if (expects(e, "`(`") && !expr && !expects(e, "`*`"))
        add_words(e, "`(`");
    if (expr)
        add_words(e, "an expression");
    else if (e->has[YYSYMBOL_NAME])
        add_words(e, "a name");
    else if (e->has[YYSYMBOL_STRING])
        add_words(e, "the name of a file in quotes");
    if (expects(e, "`*`") && !expr && (end || brace))
        add_words(e, "an operator");
}

/* ---- hints where people slip ---------------------------------------------- */

static void hint_unit(const Parser *p, Loc loc)
{
    const char *text = source_text(loc.start), *behind = source_text(loc.end);
    const char *word = str_of(text, strcspn(text, " \t\r\n;,#"));

    if (behind[strspn(behind, " \t")] == '=') {
        diag_hint("statements on one line are separated by `;`");
        return;
    }
    const char *near = unit_near(word);
    if (near) {
        diag_hint("did you mean %s?", near);
        return;
    }
    if (!newline_between(p->before_loc.end, loc.start))
        diag_hint("the units are B KB MB GB TB KiB MiB GiB TiB, GFLOP/s TFLOP/s PFLOP/s, B/s KB/s "
                  "MB/s GB/s TB/s Kbit/s Mbit/s Gbit/s Tbit/s, ns us ms s");
}

static void hint(const Parser *p, const Expected *e, int t, Loc loc)
{
    // the wrong token itself may have opened a bracket
    bool inside = in_parens(p) && p->open.at[p->open.n - 1].loc.start != loc.start;

    if ((t == ')' || t == ']') && p->before == ',')
        diag_hint("nothing follows the last comma; leave it out");
    else if (t == T_NAME && p->before == T_NUMBER)
        hint_unit(p, loc);
    else if (t == T_NEWLINE && p->before == T_IN)
        diag_hint("a loop is written `repeat i in N { ... }`");
    else if (p->first == T_REPEAT && expects(e, "`in`"))
        diag_hint("a loop is written `repeat i in N { ... }`");
    else if (t == '=' && p->before == T_NAME
             && newline_between(p->before_before, p->before_loc.start))
        diag_hint("the line before ends with `=`, `,` or an operator, so this line continues it");
    else if (p->nth > 0 && p->first == T_NAME && expects(e, "`=`") && !inside)
        diag_hint("a statement gives a name a value: `name = ...`");
    else if (t == '=' && p->first == T_NAME && !inside)
        diag_hint("only names can be given a value");
    else if (t == '-' && p->before == T_NAME && has_body(p->first))
        diag_hint("a name holds letters, digits and `_`");
    else if (p->first == T_FN && expects(e, "`(`"))
        diag_hint("a row program is written `fn name(x, ...) = expression`");
}

/* ---- errors --------------------------------------------------------------- */

/* True if the brackets open here, and `depth` more, are closed further on, and
 * nothing before that looks like the next statement. */
static bool parens_close(const Parser *p, int depth)
{
    const char *s = source_text(p->at);
    char before = 'x';          // last character that is no white space
    bool line_start = false;

    for (int i = p->open.n; i > 0 && p->open.at[i - 1].bracket != '{'; i--)
        depth++;
    for (; *s && depth > 0; s++) {
        if (*s == '#')
            s += strcspn(s, "\n");
        if (*s == '"') {
            s += 1 + strcspn(s + 1, "\"\n");
            if (*s != '"')
                return false;
        }
        if (*s == '{' || *s == '}' || *s == '\0')
            return false;
        if (line_start && (isalpha((unsigned char)*s) || *s == '_')
            && !strchr(",+-*/%^=([;", before))
            return false;
        depth += (*s == '(' || *s == '[') - (*s == ')' || *s == ']');
        if (!isspace((unsigned char)*s)) {
            before = *s;
            line_start = false;
        } else if (*s == '\n') {
            line_start = true;
        }
    }
    return depth == 0;
}

/* Called for every error, with the wrong token handed out last. */
static void begin_recovery(Parser *p)
{
    bool same = p->error_at == p->loc.start;
    bool new_line = newline_between(p->before_loc.end, p->loc.start) && p->token != T_NEWLINE
                 && p->before != ',' && !is_operator(p->before);

    p->recovering = true;
    p->error_nth = p->nth;
    p->error_at = p->loc.start;
    // what begins a line most likely begins a statement; a `}` must not be lost
    p->again = !same && !p->stopped && (new_line || (p->token == '}' && p->closed));
    if (p->again && (p->token == '(' || p->token == '[' || p->token == '{'))
        p->open.n--;
    if (p->again && p->token == '}' && p->closed)
        vec_add(&p->open, p->popped);
    if (in_parens(p) && (p->again || p->token == T_NEWLINE || !parens_close(p, 0)))
        leave_parens(p);
}

static bool report_special(Parser *p, const Expected *e, int t, Loc loc)
{
    const char *word = token_words(t, loc);

    if (is_keyword(t) && e->has[YYSYMBOL_NAME] && !(is_outer(t) && e->has[YYSYMBOL_MODEL])) {
        diag_error(loc, "syntax", "%s is a reserved word and cannot be a name", word);
    } else if (t == '}' && !in_braces(p) && !in_parens(p)) {
        diag_error(loc, "syntax", "there is no open `{` for this `}`");
    } else if ((t == ')' || t == ']') && !in_parens(p) && !expects(e, "`)`")
               && !e->has[YYSYMBOL_NUMBER]) {
        diag_error(loc, "syntax", "there is no open `%c` for this `%c`", t == ')' ? '(' : '[', t);
    } else if (is_operator(t) && (e->has[YYSYMBOL_RETURN] || e->has[YYSYMBOL_MODEL])) {
        diag_error(loc, "syntax", "a statement cannot begin with %s", word);
        diag_hint("an expression goes on in the next line if its line ends with the operator");
    } else {
        return false;
    }
    return true;
}

static int yyreport_syntax_error(const yypcontext_t *ctx, Parser *p)
{
    yysymbol_kind_t list[YYNTOKENS];
    Expected e = { .words = "something else" };
    int n = yypcontext_expected_tokens(ctx, list, YYNTOKENS), t = p->token;
    Loc loc = p->loc;

    for (int i = 0; i < n; i++)
        e.has[list[i]] = true;
    bool silent = p->stopped || p->error_at == loc.start;
    if (!silent && !report_special(p, &e, t, loc)) {
        describe(&e);
        diag_error(loc, "syntax", "expected %s before %s", e.words, token_words(t, loc));
        bool far = t == T_NEWLINE || t == ')' || t == ']'
                || (p->open.n && newline_between(p->open.at[p->open.n - 1].loc.end, loc.start));
        if (in_parens(p) && far && (expects(&e, "`)`") || expects(&e, "`]`")))
            note_open(p);
        hint(p, &e, t, loc);
    }
    begin_recovery(p);
    return 0;
}

static void parser_error(const Loc *loc, Parser *p, const char *message)
{
    (void)message;              // bison's only other message: its stack is full
    if (!p->stopped)
        diag_error(*loc, "syntax", "the expression is nested too deeply");
    p->stopped = true;
}

/* ---- the token filter ----------------------------------------------------- */

static const void *value_of(int t, const PARSER_STYPE *value)
{
    if (t == T_NUMBER)
        return value->T_NUMBER;
    return t == T_STRING || t == T_NAME ? value->T_NAME : NULL;
}

static void hold(Parser *p, int t, Loc loc, const void *value)
{
    assert(p->nheld < 4);
    p->held[p->nheld].token = t;
    p->held[p->nheld].loc = loc;
    p->held[p->nheld++].value = value;
}

static int raw_token(PARSER_STYPE *value, Loc *loc, Parser *p)
{
    if (p->nheld > 0) {
        int t = p->held[--p->nheld].token;
        *loc = p->held[p->nheld].loc;
        if (t == T_NUMBER)
            value->T_NUMBER = (Expr *)p->held[p->nheld].value;
        else
            value->T_NAME = p->held[p->nheld].value;
        return t;
    }
    int t = p->stopped ? T_END : lexer_lex(value, loc, p->scanner);
    if (t == T_END)
        *loc = (Loc){ p->at, p->at };
    return t;
}

/* Records a token as handed out. */
static int hand_out(Parser *p, int t, Loc loc)
{
    bool first = ends_statement(p->token) && !in_parens(p);

    p->before_before = p->before_loc.start;
    p->before = p->token;
    p->before_loc = p->loc;
    p->token = t;
    p->loc = loc;
    p->nth = first ? 0 : p->nth + 1;
    if (first)
        p->first = t;
    p->closed = false;
    if (t == '(' || t == '[' || t == '{')
        open_bracket(p, t, loc);
    if (t == ')' || t == ']' || t == '}')
        close_bracket(p, t);
    return t;
}

/* Skips what stands between the `{` just read and its `}`. */
static void skip_body(Parser *p)
{
    PARSER_STYPE value;
    Loc loc;
    int depth = 1;

    while (depth > 0) {
        int t = raw_token(&value, &loc, p);
        depth += (t == '{') - (t == '}');
        if (t == T_END) {
            hold(p, t, loc, NULL);
            return;
        }
    }
}

/* After an error: the token from which the parser can go on. */
static int skip_statement(PARSER_STYPE *value, Loc *loc, Parser *p)
{
    bool header = has_body(p->first) && p->error_nth > 0;

    if (p->token == '{') {      // the wrong token itself
        skip_body(p);
        if (p->open.n && p->open.at[p->open.n - 1].loc.start == p->loc.start)
            p->open.n--;
    }
    for (int t = 0, before; ; ) {
        before = t;
        t = raw_token(value, loc, p);
        if (t == '{' && header && !in_parens(p))
            return t;
        if (t == '{')
            skip_body(p);
        else if ((t == '(' || t == '[') && (in_parens(p) || parens_close(p, 1)))
            open_bracket(p, t, *loc);
        else if (t == ')' || t == ']')
            close_bracket(p, t);
        else if (t == '}' && in_braces(p))
            leave_parens(p);
        bool white = t == T_NEWLINE && (is_operator(before) || before == ',' || before == '=');
        if ((t == T_NEWLINE || t == ';') && !in_parens(p) && !white)
            return t;
        if (t == T_END || (t == '}' && in_braces(p))) {
            hold(p, t, *loc, NULL);
            return T_NEWLINE;
        }
    }
}

static int recover(PARSER_STYPE *value, Loc *loc, Parser *p)
{
    bool accepted = p->token == T_NEWLINE || p->token == ';'
                 || (p->token == '{' && has_body(p->first) && p->error_nth > 0);

    p->recovering = false;
    if (p->again) {
        p->again = false;
        hold(p, p->token, p->loc, p->value);
        *loc = p->loc;
        return T_NEWLINE;
    }
    if (accepted)
        return 0;
    p->recovering = true;       // until the parser accepts what follows
    return skip_statement(value, loc, p);
}

/* True where a newline is white space. */
static bool goes_on(const Parser *p)
{
    return in_parens(p) || is_operator(p->token) || p->token == ',' || p->token == '=';
}

/* A word like `train` inside a block, as the beginning of a section. */
static bool begins_section(const Parser *p, int t, Loc loc)
{
    const char *s = source_text(loc.end);

    if (!is_outer(t) || !in_braces(p) || in_parens(p) || !ends_statement(p->token))
        return false;
    s += strspn(s, " \t");
    return isalpha((unsigned char)*s) || *s == '_' || *s == '{' || (t == T_INCLUDE && *s == '"');
}

/* Closes the innermost block, which the user left open, before token `t`. */
static int close_block(Parser *p, int t, Loc loc)
{
    if (p->closing_at != loc.start && !p->stopped && p->error_at != loc.start) {
        diag_error(loc, "syntax", "expected `}` before %s", token_words(t, loc));
        note_open(p);
    }
    p->closing_at = loc.start;
    hold(p, t, loc, NULL);
    return '}';
}

static int next_token(PARSER_STYPE *value, Loc *loc, Parser *p)
{
    int t = 0;

    if (!p->started) {
        p->started = true;
        *loc = p->loc = (Loc){ p->at, p->at };
        return p->token = p->wants_values ? T_START_VALUES : T_START_FILE;
    }
    if (p->recovering)
        t = recover(value, loc, p);
    if (t)
        return hand_out(p, t, *loc);
    do
        t = raw_token(value, loc, p);
    while (t == T_NEWLINE && goes_on(p));
    if (t == T_WRONG) {
        hand_out(p, t, *loc);
        begin_recovery(p);
        p->again = false;
        return T_PARSER_error;
    }
    if ((t == '}' && in_braces(p) && !ends_statement(p->token))
        || (t == T_END && !ends_statement(p->token))) {
        hold(p, t, *loc, NULL);
        t = T_NEWLINE;
    } else if ((t == T_END && in_braces(p)) || begins_section(p, t, *loc)) {
        t = close_block(p, t, *loc);
    }
    p->value = value_of(t, value);
    return hand_out(p, t, *loc);
}

bool parser_run(Parser *p)
{
    int errors = diag_errors();

    return parser_parse(p) == 0 && diag_errors() == errors;
}
