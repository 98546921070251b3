/*
 * setting.c - the options that touch sections: --plan and --cluster choose,
 * --set KEY=VALUE replaces an entry of the tree or adds one. Each option is a
 * source of its own, so that messages point into it.
 */
#include "config.h"

/* ---- choosing among several ----------------------------------------------- */

/* True if `name` is in the comma-separated list of the option, or there is none. */
bool is_chosen(const Choice *c, const char *name)
{
    if (!c->chosen)
        return true;
    if (!name)
        return false;
    for (const char *w = c->chosen; ; w++) {
        size_t n = c->many ? strcspn(w, ",") : strlen(w);
        if (strlen(name) == n && memcmp(w, name, n) == 0)
            return true;
        w += n;
        if (!*w)
            return false;
    }
}

Choice make_choice(const char *kind, const char *chosen, bool many)
{
    Choice c = { kind, chosen, { 0, 0 }, many };

    if (chosen) {
        size_t n = strlen(chosen);
        c.loc.start = source_add(str_fmt("--%s", kind), chosen, n);
        c.loc.end = c.loc.start + (uint32_t)n;
    }
    return c;
}

static void unknown_section(const Ast *ast, const char *kind, Loc loc, const char *name)
{
    const char *names[64] = { NULL };
    int n = 0;

    for (int i = 0; i < ast->sections.n && n < 64; i++) {
        const Section *s = &ast->sections.at[i];
        if (strcmp(s->kind, kind) == 0 && s->name)
            names[n++] = s->name;
    }
    const char *near = str_nearest(name, names, n);
    diag_error(loc, str_fmt("unknown-%s", kind), "there is no %s `%s`", kind, name);
    if (near)
        diag_hint("did you mean %s?", near);
    else if (n == 0)
        diag_hint("the files hold no %s with a name", kind);
    else if (n == 1)
        diag_hint("there is `%s`", names[0]);
    else
        diag_hint("there are `%s` and %d more", names[0], n - 1);
}

/* Every name of the option must exist; several sections need a choice. */
void check_choice(const Ast *ast, const Choice *c)
{
    const Section *first = NULL, *second = NULL;

    for (const char *w = c->chosen; w && *w;) {
        size_t n = c->many ? strcspn(w, ",") : strlen(w);
        const char *name = str_of(w, n);
        bool found = false;
        for (int i = 0; i < ast->sections.n && !found; i++) {
            const Section *s = &ast->sections.at[i];
            found = strcmp(s->kind, c->kind) == 0 && s->name == name;
        }
        uint32_t at = c->loc.start + (uint32_t)(w - c->chosen);
        if (!found)
            unknown_section(ast, c->kind, (Loc){ at, at + (uint32_t)n }, name);
        w += n + (w[n] == ',');
    }
    for (int i = 0; i < ast->sections.n && !second; i++) {
        const Section *s = &ast->sections.at[i];
        if (strcmp(s->kind, c->kind) != 0)
            continue;
        if (first)
            second = s;
        else
            first = s;
    }
    if (second && !c->chosen && !c->many && first->name && second->name) {
        diag_error(second->loc, str_fmt("choose-%s", c->kind), "there are several %ss", c->kind);
        diag_note(first->loc, "the first one stands here");
        diag_hint("choose one with --%s %s", c->kind, first->name);
    }
}

/* ---- --set ---------------------------------------------------------------- */

typedef struct {
    uint32_t base;              // of the option's text
    const char *text;
    struct { const char *word; Loc loc; } part[3];      // of the key, between dots
    int nparts;
    uint32_t value, end;        // offsets of the value
} Setting;

static bool split_setting(const char *option, const char *text, Setting *s)
{
    size_t n = strlen(text), key = strcspn(text, "=");

    *s = (Setting){ .text = text, .base = source_add(option, text, n) };
    Loc all = { s->base, s->base + (uint32_t)key };
    if (text[key] != '=') {
        diag_error(all, "syntax", "a setting has the form KEY=VALUE");
        diag_hint("for example `--set train.batch=8`");
        return false;
    }
    for (size_t i = 0; i <= key;) {
        size_t len = strcspn(text + i, ".=");
        size_t skip = strspn(text + i, " "), words = len;
        while (words > skip && text[i + words - 1] == ' ')
            words--;
        uint32_t at = s->base + (uint32_t)(i + skip);
        if (words <= skip || s->nparts == 3) {
            diag_error(all, "syntax", "the key of a setting is a section and a key, as in "
                       "`train.batch`");
            return false;
        }
        s->part[s->nparts].word = str_of(text + i + skip, words - skip);
        s->part[s->nparts++].loc = (Loc){ at, at + (uint32_t)(words - skip) };
        i += len + 1;
    }
    size_t value = key + 1;
    value += strspn(text + value, " ");
    while (n > value && text[n - 1] == ' ')
        n--;
    s->value = s->base + (uint32_t)value;
    s->end = s->base + (uint32_t)n;
    if (value >= n)
        diag_error((Loc){ s->value, s->value }, "syntax", "the value is missing");
    return value < n;
}

static void no_section(const Setting *s)
{
    static const char *const names[] = { "train", "device", "cluster", "plan", "model" };
    const char *word = s->part[0].word;
    Text hint = { 0 };

    if (s->nparts > 1) {
        const char *near = str_nearest(word, names, COUNT(names));
        diag_error(s->part[0].loc, "unknown-key", "there is no section `%s`", word);
        if (near)
            diag_hint("did you mean %s?", near);
        else
            diag_hint("settings begin with train, device, cluster, plan or model");
        return;
    }
    diag_error(s->part[0].loc, "unknown-key", "the setting `%s` names no section", word);
    for (int i = 0; i < COUNT(kinds); i++) {
        if (find_key(&kinds[i], word))
            text_add(&hint, "%s`%s.%s`", hint.n ? " or " : "", kinds[i].kind, word);
    }
    diag_hint("write %s", hint.n ? hint.at : "the section first, as in `train.batch` or "
              "`model.layers`");
}

/* The device that the chosen cluster is made of, or the only one; NULL: none. */
static const char *default_device(const Ast *ast, const Choice *cluster)
{
    const char *only_name = NULL;
    int n = 0;

    for (int i = 0; i < ast->sections.n; i++) {
        const Section *s = &ast->sections.at[i];
        if (strcmp(s->kind, "device") == 0) {
            only_name = s->name;
            n++;
        }
        if (strcmp(s->kind, "cluster") != 0 || !is_chosen(cluster, s->name))
            continue;
        for (int j = 0; j < s->entries.n; j++) {
            const Expr *e = s->entries.at[j].values.at[0];
            if (strcmp(s->entries.at[j].name, "node") != 0)
                continue;
            for (int k = 0; e->kind == E_BINARY && k < 2; k++) {
                if (e->args.at[k].value->kind == E_NAME)
                    return e->args.at[k].value->text;
            }
            if (e->kind == E_NAME)
                return e->text;
        }
    }
    return n == 1 ? only_name : NULL;
}

static void put_entry(Section *s, Entry e)
{
    for (int i = 0; i < s->entries.n; i++) {
        if (s->entries.at[i].name == e.name) {
            s->entries.at[i] = e;
            return;
        }
    }
    vec_add(&s->entries, e);
}

/* Puts the entry into every section of the kind that is meant, or a new one. */
static void put_setting(Ast *ast, const Kind *kind, const char *name, const Choice *choice,
                        Loc loc, Entry e)
{
    bool done = false, any = false;

    for (int i = 0; i < ast->sections.n; i++) {
        Section *s = &ast->sections.at[i];
        if (strcmp(s->kind, kind->kind) != 0)
            continue;
        any = true;
        if (name ? s->name != name : choice && !is_chosen(choice, s->name))
            continue;
        put_entry(s, e);
        done = true;
    }
    if (done)
        return;
    if (name && any) {
        unknown_section(ast, kind->kind, loc, name);
        return;
    }
    Section fresh = { .kind = kind->kind, .name = name, .loc = loc };
    if (!name && strcmp(kind->kind, "cluster") == 0)
        fresh.name = str("cluster");
    vec_add(&fresh.entries, e);
    vec_add(&ast->sections, fresh);
}

static bool setting_values(const Setting *s, bool is_text, Exprs *values)
{
    Loc loc = { s->value, s->end };
    const char *text = source_text(s->value);
    size_t n = s->end - s->value;

    if (!is_text || *text == '"')
        return parse_values(s->value, s->end, values);
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)text[i] < 0x20) {
            diag_error(loc, "syntax", "a string cannot hold control characters");
            return false;
        }
    }
    vec_add(values, ast_leaf(E_STRING, loc, str_of(text, n)));
    return true;
}

void apply_setting(Config *c, const char *option, const char *text, const Choice *plan,
                   const Choice *cluster)
{
    Setting s;
    Exprs values = { 0 };

    if (!split_setting(option, text, &s))
        return;
    const Kind *kind = s.nparts > 1 ? find_kind(s.part[0].word) : NULL;
    bool is_model = s.nparts == 2 && strcmp(s.part[0].word, "model") == 0;
    bool is_device = kind && strcmp(kind->kind, "device") == 0;
    int last = s.nparts - 1;
    if (!kind && !is_model) {
        no_section(&s);
        return;
    }
    const Key *key = kind ? find_key(kind, s.part[last].word) : NULL;
    if (kind && !key) {
        unknown_key(kind, s.part[last].loc, s.part[last].word);
        return;
    }
    if (!setting_values(&s, key && (key->kind == K_PATH || key->kind == K_NAME), &values))
        return;
    Entry e = { s.part[last].word, s.part[last].loc, values };
    if (is_model) {
        vec_add(&c->model_sets, e);
        return;
    }
    const char *name = s.nparts == 3 ? s.part[1].word : NULL;
    if (name && strcmp(kind->kind, "train") == 0) {
        diag_error(s.part[1].loc, "unknown-key", "a train section has no name");
        return;
    }
    if (!name && is_device && !(name = default_device(c->ast, cluster))) {
        diag_error(s.part[0].loc, "unknown-device", "the setting does not say which device");
        diag_hint("write `device.NAME.%s`", e.name);
        return;
    }
    const Choice *choice = strcmp(kind->kind, "plan") == 0 ? plan
                         : strcmp(kind->kind, "cluster") == 0 ? cluster : NULL;
    put_setting(c->ast, kind, name, choice, s.part[name ? s.nparts - 2 : 0].loc, e);
}
