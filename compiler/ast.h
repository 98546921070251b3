/*
 * ast.h - the tree as the user wrote it, and the settings of its sections.
 *
 * parser.y builds the tree with ast_* calls and infers nothing. config.c
 * turns the sections (train, device, cluster, plan) into the structs below
 * with units resolved, keys checked and --set applied; graph.c evaluates the
 * model. Everything lives in `perm`.
 */
#ifndef AST_H
#define AST_H

#include "diag.h"

typedef enum {
    E_NUMBER,       // number, text
    E_QUANTITY,     // number in base units (B, FLOP/s, B/s, s), unit
    E_STRING,       // text, without quotes
    E_NAME,         // text; also words such as 1f1b, 2d
    E_YES, E_NO, E_AUTO,
    E_LIST,         // args
    E_CALL,         // text = callee, args (named ones after positional)
    E_INDEX,        // args[0] [ args[1] ]
    E_UNARY,        // '-' args[0]
    E_BINARY        // op, args[0], args[1]
} ExprKind;

typedef enum {
    UNIT_NONE, UNIT_BYTES, UNIT_FLOPS, UNIT_RATE, UNIT_SECONDS,
    UNIT_NODES              // "32 nodes", in a cluster's spine
} Unit;

enum { EXPR_DEPTH = 1000, NEST_DEPTH = 200 };    // limits on operators and brackets

typedef struct Expr Expr;
typedef struct { const char *name; Loc name_loc; Expr *value; } Arg;  // name NULL: positional
typedef VEC(Arg) Args;
struct Expr {
    ExprKind kind;
    Loc loc;                // whole expression
    Loc name_loc;           // E_CALL: the callee's word; E_BINARY: the operator
    const char *text;       // interned
    double number;
    Unit unit;
    bool integral;          // E_NUMBER written without '.' or exponent
    char op;                // + - * / % ^
    int depth;              // of the tree below; at most EXPR_DEPTH
    Args args;
};

typedef struct Stmt Stmt;
typedef struct { const char *name; Loc loc; } Name;
typedef VEC(Name) Names;
typedef VEC(Stmt *) Stmts;
typedef VEC(Expr *) Exprs;
struct Stmt {
    Loc loc;
    bool is_repeat;
    Names names;            // assigned names, or the loop index
    Expr *value;            // right-hand side, or the count of turns
    Stmts body;             // repeat
};

typedef struct {            // fn NAME(params; vectors) = body
    const char *name; Loc loc;
    Args params, vectors;   // name, name_loc, default or NULL
    Expr *body;
} Fn;

typedef struct {            // block NAME(params) { statements return results }
    const char *name; Loc loc;
    Names params;
    Stmts body;
    Exprs results;
} Block;

typedef struct { const char *name; Loc loc; Exprs values; } Entry;     // key = expr, expr
typedef struct {
    const char *kind, *name;        // "train" ...; name NULL if none
    Loc loc;
    VEC(Entry) entries;
} Section;

typedef struct {
    const char *model_name; Loc model_loc;      // NULL: no model was given
    VEC(Block) blocks;
    Stmts body;
    VEC(Fn) fns;                                // prelude first
    VEC(Section) sections;
} Ast;

/* ---- settings: what config.c makes of the sections ------------------------ */

/* A value and where it was written; loc {0,0} means the default. */
typedef struct { double v; Loc loc; bool set; } Num;
typedef struct { const char *v; Loc loc; bool set; } Word;   // v NULL: none

typedef enum { PREC_FP64, PREC_FP32, PREC_BF16, PREC_FP16, PREC_FP8 } Precision;
typedef enum { OPT_ADAMW, OPT_SGD } OptimizerKind;
typedef enum { SCHED_CONSTANT, SCHED_COSINE, SCHED_LINEAR, SCHED_WSD } LrKind;
typedef enum { OBJ_NEXT, OBJ_MASKED } ObjectiveKind;

typedef struct {
    Loc loc;
    Word data; const char *data_dir;            // relative paths start there
    Word format;                                // auto bytes u16 u32 llmc
    Word order;                                 // sequential shuffle
    Num batch, sequence, steps, seed, clip;     // clip 0: none
    ObjectiveKind objective; Loc objective_loc;
    double mask_p; int64_t mask_token;
    OptimizerKind optimizer; Loc optimizer_loc;
    double lr, beta1, beta2, eps, weight_decay, momentum;
    LrKind schedule; Loc schedule_loc;
    int64_t warmup, decay; double lr_min;
    Precision precision; Loc precision_loc;
    bool reduce_bf16; Loc reduce_loc;
    VEC(Word) no_decay;
    // 0: never; the paths of these two are joined with their file's folder
    int64_t validate_every, validate_batches; const char *validate_data;
    int64_t checkpoint_every; const char *checkpoint_dir;
    Loc validate_loc, checkpoint_loc;
    Word weights; const char *weights_dir;
    Word log; const char *log_dir;
} Train;

typedef struct {
    const char *name; Loc loc;
    Num memory, bandwidth, matrix, matrix_fp8, matrix_fp32, matrix_fp64, vector;
    Num launch, reserve, price;
    Word arch, profile;
    struct Profile *rates;                      // what `profile` says, or NULL; profile.h
} Device;

/* Is the word written, and is it this one? */
static inline bool word_is(Word w, const char *text) { return w.v && strcmp(w.v, text) == 0; }
/* "sm_90" is; "cpu" and NULL are not. */
static inline bool arch_is_gpu(const char *arch) { return arch && strncmp(arch, "sm_", 3) == 0; }

typedef struct {
    const char *name; Loc loc;
    Num nodes, per_node;                        // node = N * DEVICE
    int device;                                 // index of Config.devices
    Num link_rate, link_latency, network_rate, network_latency, ports;
    Num spine_nodes, spine_rate, spine_latency;
} Cluster;

typedef enum { CHOOSE_AUTO = -1 } ChooseAuto;

typedef struct {
    const char *name; Loc loc;
    Num data, pipeline, chunks, cube[3], microbatch;    // set = false: auto
    Loc cube_loc;
    enum { SLICES_AUTO, SLICES_UNIFORM, SLICES_LIST } slices_kind; Loc slices_loc;
    int64_t slices_n; VEC(int64_t) slices;
    Word schedule, recompute, partition, attention, rows, keep, vectors;
    int64_t recompute_n;                        // full(n); 0: all
    int64_t summa_q;                            // partition = summa(q)
    Num zero, logits_chunk, prefetch;
    VEC(int64_t) turns; Loc turns_loc;
    VEC(const char *) ranks; Loc ranks_loc;
} PlanSpec;

typedef struct {
    Ast *ast;
    Train train; bool has_train;
    VEC(Device) devices;
    Cluster cluster; bool has_cluster;          // the chosen one
    struct Profile *here;                       // measured rates of this machine, or NULL
    PlanSpec plan; bool has_plan;               // the chosen one; the first of several
    VEC(PlanSpec) plans;                        // all; with many_plans those chosen, in order
    bool any_room;      // verify: a smaller form is executed, so memory is no limit
    /* --set model.NAME=VALUE: graph.c replaces the number first assigned */
    VEC(Entry) model_sets;
} Config;

/* ---- ast.c, parser.y ------------------------------------------------------ */
typedef struct {
    const char *const *files; int nfiles;       // named on the command line
    const char *const *sets;  int nsets;        // "KEY=VALUE" of --set, in order
    const char *more; int from;                 // sets from `from` on are of `more`; NULL: of --set
    const char *plan, *cluster;                 // --plan, --cluster, or NULL
    bool many_plans;        // tune, diff: --plan may be a list "a,b", or missing for all
    bool no_profiles;       // profile: files of measured rates are not read
} Inputs;

/* Reads prelude, files and includes. Syntax errors are reported (several); the
 * tree holds what could be read. Never returns NULL. A file that cannot be
 * opened is an error at its include, or a message without a place. */
Ast *parse_files(const Inputs *in);
void print_ast(const Ast *ast, FILE *f);        // -d parse: the language again
/* Parses one expression from a source already added (for --set). NULL: error. */
Expr *parse_expr(uint32_t start, uint32_t end);

/* ---- between lexer.l, parser.y and ast.c ---------------------------------- */

typedef struct {            // what stands between { and }
    Stmts stmts;
    VEC(Block) blocks;
    Exprs results; Loc return_loc;              // `return`; {0, 0}: none
    Loc late;               // the first statement behind `return`
} Body;

typedef struct { char bracket; Loc loc; } Open;

/* One run of the parser over one range of the byte space. */
typedef struct {
    Ast *ast;
    uint32_t at, end;       // the lexer's place, and where it stops
    bool wants_values;      // a list of expressions (--set), not a file
    Exprs *values;          // that list
    void *scanner;
    VEC(Open) open;         // brackets not closed yet
    bool stopped, too_deep; // no more of this input; a depth was reported
    // next_token in parser.y: what it needs to end statements and to recover
    int token; Loc loc; const void *value;          // handed out last
    int before; Loc before_loc; uint32_t before_before;     // the tokens before it
    int first, nth;         // first token of the statement; number of `token` in it, from 0
    bool started, recovering;
    bool again;             // the wrong token begins a line and is read again
    int error_nth;          // number of the wrong token in its statement
    uint32_t error_at, closing_at;                  // where the last errors were
    bool closed; Open popped;                       // `token` closed this brace
    struct { int token; Loc loc; const void *value; } held[4];      // handed out next, last first
    int nheld;
} Parser;

enum { PRELUDE = 1 };       // the prelude is the first source

Expr *ast_number(Parser *p, Loc loc, const char *text, size_t n);     // with its unit
const char *unit_near(const char *word);     // "`GB/s`" for "gb/s", for a hint; NULL: none
Expr *ast_leaf(ExprKind kind, Loc loc, const char *text);
Expr *ast_list(Loc loc, const Exprs *values);
Expr *ast_call(Parser *p, Loc loc, Name callee, const Args *args);
Expr *ast_index(Parser *p, Loc loc, Expr *list, Expr *index);
Expr *ast_unary(Parser *p, Loc loc, Loc op, Expr *a);
Expr *ast_binary(Parser *p, Loc loc, char op, Loc op_loc, Expr *a, Expr *b);
Expr *ast_parens(Loc loc, Expr *e);
Args *ast_args(Args *args, Name name, Expr *value);
Names *ast_names(Names *names, Name name);
Exprs *ast_exprs(Exprs *exprs, Expr *e);
Body *ast_assign(Body *b, Loc loc, const Names *names, Expr *value);
Body *ast_return(Body *b, Loc loc, const Exprs *results);
Body *ast_repeat(Body *b, Loc loc, Name index, Expr *count, const Body *inner);
Body *ast_block(Body *b, Name name, const Names *params, const Body *inner);
Section *ast_entry(Section *s, Name key, const Exprs *values);
void ast_section(Parser *p, const char *kind, Loc kind_loc, Name name, Section *s);
void ast_model(Parser *p, Name name, const Body *body);
void ast_fn(Parser *p, Name name, const Args *params, const Args *vectors, Expr *body);
void ast_include(Parser *p, Loc loc, const char *path);
bool parser_run(Parser *p);                     // parser.y; false: nothing usable
/* A list of expressions between two offsets of a source; false: error. */
bool parse_values(uint32_t start, uint32_t end, Exprs *values);

/* ---- config.c ------------------------------------------------------------- */
/* Sections to settings. All errors are reported; check diag_errors(). */
Config *config_read(Ast *ast, const Inputs *in);

#endif
