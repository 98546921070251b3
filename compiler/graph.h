/*
 * graph.h - shared by the three files that turn the model into a graph.
 *
 *   graph.c    names, scopes, statements, expressions; the checks at the end
 *   model.c    the operators with kernels of their own, and their parameters
 *   rowfn.c    elementwise arithmetic, reductions, calls of fn
 *
 * Evaluation is plain interpretation: blocks are called, repeats run, and the
 * operators they meet are appended to the plan. A Val of kind V_NONE stands
 * for something whose error was already reported; nothing is said about it again.
 */
#ifndef GRAPH_H
#define GRAPH_H

#include "plan.h"

typedef enum { V_NONE, V_NUMBER, V_TENSOR, V_LIST, V_BOOL, V_STRING } ValKind;

typedef struct Val Val;
struct Val {
    ValKind kind;
    Loc loc;                // the expression it came from
    double number;
    TensorId tensor;
    const char *text;       // V_STRING, braces not yet replaced
    bool yes;
    int n; Val *at;         // V_LIST
    bool several;           // a V_LIST of results: of split, or of a block
};

typedef struct { const char *name; Val val; Loc loc; } Binding;
typedef struct Scope Scope;
struct Scope { VEC(Binding) names; Scope *up; };    // up: within one frame

/* A block being called. */
typedef struct BlockFrame BlockFrame;
struct BlockFrame { const Block *block; Loc call; BlockFrame *up; };

/* A fn being called: its rows are `parts` pieces of a row of `width`. */
typedef struct RowFrame RowFrame;
struct RowFrame {
    const Fn *fn;
    const char *name;       // full name of the call; its operators are named so
    Loc loc;
    int64_t width;          // 0: all arguments are numbers
    int parts;
    TensorId like;          // an argument of the full width
    RowFrame *up;
};

typedef struct {
    Plan *p;
    const Ast *ast;
    const Train *train;
    Scope *top, *scope;     // the model's names; the current ones
    const char *prefix;     // "h.3", "" at the top
    RowFrame *row;          // NULL outside fn
    BlockFrame *block;      // NULL at the model's level
    int repeat, turn, zone; // as in Op
    int depth;              // nested evaluations
    int64_t steps;          // statements run so far
    bool full;              // too much was asked for: stop quietly
    Map *said;              // errors already reported, by place
    Map *counts;            // "prefix operator" -> how many had no name
    Map *param_of;          // parameter's full name -> ParamId
    Map *matrix_of;         // operator's full name -> ParamId of its matrix or table
    Map *dropouts;          // full name -> OpId
    VEC(Name) gone;         // names that lived inside a repeat only
    Loc loss_loc;
    Map *set_done;          // the NAMEs of --set model.NAME that were met
    int errors_before;      // of the files; a missing statement may be one of them
} Graph;

/* ---- graph.c ---------------------------------------------------------- */
/* Reports once per place and check; true where it did, so that notes may follow. */
bool graph_error(Graph *g, Loc loc, const char *check, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
bool graph_warning(Graph *g, Loc loc, const char *check, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
Val  graph_eval(Graph *g, const Expr *e);
bool graph_enter(Graph *g, Loc loc);            // one level deeper; false: too deep
const char *graph_kind(const Graph *g, const Val *v);       // "a number", "a tensor"
bool graph_is_kind(const Graph *g, const Val *v, TensorKind kind);
/* A number; a whole number; a size of 1 .. 2^40; a count of 1 .. 2^24. False: reported.
 * `what` names it in messages. */
bool graph_number(Graph *g, const Expr *e, const char *what, double *out);
bool graph_integer(Graph *g, const Expr *e, const char *what, int64_t *out);
bool graph_size(Graph *g, const Expr *e, const char *what, int64_t *out);
bool graph_count(Graph *g, const Expr *e, const char *what, int64_t *out);
bool graph_whole(Graph *g, Loc loc, double v, const char *what, int64_t *out);
const char *graph_string(Graph *g, const Expr *e);          // braces replaced; NULL: reported
void graph_suggest(const char *word, const char *const *names, int n);
OpAt graph_at(const Graph *g, const char *name, Loc loc);
Val  val_none(Loc loc);
Val  val_number(double v, Loc loc);
Val  val_tensor(TensorId t, Loc loc);
Val  val_list(int n, Val *at, bool several, Loc loc);
void scope_put(Scope *s, const char *name, Val val, Loc loc);
Val  graph_block(Graph *g, const Expr *call, const Block *b);

/* ---- model.c ---------------------------------------------------------- */
Val model_call(Graph *g, const Expr *call);     // any call at all
void model_check_names(Graph *g);               // blocks and fns against operators
/* Full name: prefix, then `given` or "WORD.N", the next free number of the prefix. */
const char *model_name(Graph *g, const char *given, const char *word);
const char *model_join(const char *prefix, const char *name);
ParamId model_param(Graph *g, const Param *like);           // NONE: reported
bool model_init(Graph *g, const Expr *e, InitKind *kind, double *a);

/* ---- rowfn.c ---------------------------------------------------------- */
Val row_unary(Graph *g, OpKind kind, Val a, Loc loc);
Val row_binary(Graph *g, OpKind kind, Val a, Val b, Loc loc);
Val row_power(Graph *g, Val a, Val b, Loc loc);
/* exp(x), maximum(a, b), mean(x) ..; false: `call` is none of them. */
bool row_builtin(Graph *g, const Expr *call, Val *result);
Val row_fn(Graph *g, const Expr *call, const Fn *fn);
extern const char *const row_builtin_names[];   // NULL at the end

#endif
