/*
 * sides.c - figures of two sides (sides.h).
 */
#include "print.h"
#include "sides.h"

SideRow *side_row(SideTable *t, const char *name)
{
    for (int i = 0; i < t->rows.n; i++)
        if (strcmp(t->rows.at[i].name, name) == 0)
            return &t->rows.at[i];
    SideRow r = { .name = name };
    vec_add(&t->rows, r);
    return &t->rows.at[t->rows.n - 1];
}

void side_text(SideTable *t, int side, const char *name, const char *text)
{
    SideRow *r = side_row(t, name);
    r->text[side] = text;
    r->has[side] = true;
}

void side_put(SideTable *t, int side, const char *name, double value)
{
    SideRow *r = side_row(t, name);
    r->value[side] = value;
    r->has[side] = true;
}

bool side_alike(double a, double b) { return fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b)); }

bool side_same(const SideRow *r)
{
    if (r->text[0] || r->text[1])
        return r->text[0] && r->text[1] && strcmp(r->text[0], r->text[1]) == 0;
    return side_alike(r->value[0], r->value[1]);
}

static const char *value_text(Show show, double v)
{
    return show == SHOW_SECONDS ? str_seconds(v) : show == SHOW_BYTES ? str_bytes(v)
         : floor(v) == v && fabs(v) < 1e9 ? str_fmt("%.0f", v) : str_fmt("%.4g", v);
}

static const char *cell(Show show, const SideRow *r, int side)
{
    return !r->has[side] ? "-" : show == SHOW_TEXT ? r->text[side]
         : value_text(show, r->value[side]);
}

const char *side_change(Show show, double a, double b)
{
    double d = b - a;
    if (side_alike(a, b))
        return "";
    const char *by = str_fmt("%s%s", d < 0 ? "-" : "+", value_text(show, fabs(d)));
    return a > 0 && b > 0 ? str_fmt("%s (%+.1f %%)", by, 100 * (b / a - 1)) : by;
}

static int by_difference(const void *a, const void *b)
{
    const SideRow *x = a, *y = b;
    if (x->is_sum != y->is_sum)
        return x->is_sum - y->is_sum;
    double d = fabs(x->value[1] - x->value[0]), e = fabs(y->value[1] - y->value[0]);
    return (d < e) - (d > e);
}

void side_print(const SideTable *p, const char *a, const char *b, const char *change, FILE *f)
{
    bool text = p->show == SHOW_TEXT;
    Table t = { .align = text ? "lll" : "lrrr" };
    SideRow *rows = NEWN(SideRow, p->rows.n + 1);
    Text same = { 0 };
    int changed = 0, nsame = 0;
    for (int i = 0; i < p->rows.n; i++)
        if (!side_same(&p->rows.at[i]))
            rows[changed++] = p->rows.at[i];
        else
            text_add(&same, "%s%s", nsame++ ? ", " : "", p->rows.at[i].name);
    if (p->rows.n == 0)
        return;
    if (!text)
        qsort(rows, (size_t)changed, sizeof *rows, by_difference);
    print_heading(f, p->title);
    table_cell(&t, "%s", "");
    table_cell(&t, "%s", a);
    table_cell(&t, "%s", b);
    if (!text)
        table_cell(&t, "%s", change);
    for (int i = 0; i < changed; i++) {
        table_cell(&t, "%s", rows[i].name);
        table_cell(&t, "%s", cell(p->show, &rows[i], 0));
        table_cell(&t, "%s", cell(p->show, &rows[i], 1));
        if (!text)
            table_cell(&t, "%s", side_change(p->show, rows[i].value[0], rows[i].value[1]));
    }
    if (changed)
        table_print(&t, f);
    if (nsame)
        fprintf(f, "  unchanged: %.*s\n", (int)same.n, same.at);
}
