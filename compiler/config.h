/*
 * config.h - shared by the three files that turn sections into settings:
 * value.c reads one value, config.c knows the keys of each section, setting.c
 * applies the options --set, --plan and --cluster. Nobody else includes it.
 */
#ifndef CONFIG_H
#define CONFIG_H

#include "ast.h"

#define WHOLE_MOST 2147483647.0         // counts and sizes
#define STEPS_MOST 1099511627775.0      // 2^40 - 1
#define SEED_MOST 9007199254740991.0    // 2^53 - 1
#define COUNT(a) ((int)(sizeof (a) / sizeof *(a)))

typedef enum {
    K_WHOLE,        // Num, an integer in [min, max]
    K_POSITIVE,     // Num with `unit`, above 0
    K_AMOUNT,       // Num with `unit`, 0 or more
    K_WORD,         // Word, one of `words`
    K_NAME,         // Word, any name or string
    K_PATH,         // Word, a string; the folder of its file goes to `dir`
    K_READ          // `read` does it
} KeyKind;

typedef struct {
    const char *name;
    KeyKind kind;
    size_t at, dir;             // offsets in the section's struct
    Unit unit;
    double min, max;
    const char *words;          // separated by blanks
    void (*read)(void *into, const Entry *e);
} Key;

/* A section's name and keys. */
typedef struct { const char *kind; const Key *keys; int n; } Kind;
enum { NKINDS = 4 };
extern const Kind kinds[NKINDS];

/* An argument of a word such as adamw(lr=1e-3). */
typedef struct {
    const char *name;
    double *number;             // 0 or more; below 1 if `fraction`, above 0 if `positive`
    int64_t *whole;             // an integer from `least`
    const char **string;        // a path, joined with its file's folder
    bool fraction, positive, required;
    int64_t least;
} Param;

/* An option --plan or --cluster: a name, or with `many` a list "a,b". */
typedef struct { const char *kind, *chosen; Loc loc; bool many; } Choice;

/* value.c: each reports what is wrong and then gives false or NULL. */
const char *expr_words(const Expr *e);              // "a string", "the word `x`"
const char *number_words(double v);                 // 32, 2.5, 1e+20
bool is_among(const char *word, const char *words); // words separated by blanks
const Expr *only(const Entry *e);                   // the value of a key with one
bool read_whole(const char *name, const Expr *e, Unit unit, double min, double max, double *v);
bool read_amount(const char *name, const Expr *e, Unit unit, bool zero_too, double *v);
const char *read_word(const char *name, const Expr *e, const char *words);
const char *read_string(const char *name, const Expr *e);
const char *read_head(const Entry *entry, const Expr **e, const char *words);
void read_call(const Expr *e, const Param *params, int n);
const char *path_join(const char *dir, const char *path);

/* config.c */
const Kind *find_kind(const char *name);
const Key *find_key(const Kind *kind, const char *name);
void unknown_key(const Kind *kind, Loc loc, const char *name);

/* setting.c */
Choice make_choice(const char *kind, const char *chosen, bool many);
bool is_chosen(const Choice *c, const char *name);
void check_choice(const Ast *ast, const Choice *c);
void apply_setting(Config *c, const char *option, const char *text, const Choice *plan,
                   const Choice *cluster);

#endif
