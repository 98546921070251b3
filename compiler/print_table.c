/*
 * print_table.c - cells first, then columns as wide as their widest cell.
 */
#include "print.h"

void table_cell(Table *t, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    const char *cell = str_of(text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
    vec_add(&t->cells, cell);
}

void table_join(Table *t)
{
    int w = (int)strlen(t->align), rows = w ? t->cells.n / w : 0, kept = 0, first = 0, last = 0;
    for (int r = 1; r < rows; r++) {
        const char **row = &t->cells.at[r * w], **into = &t->cells.at[kept * w];
        bool same = kept > 0;
        for (int c = 1; c < w && same; c++)
            same = row[c] == into[c];
        last = atoi(row[0]);
        if (same) {
            into[0] = str_fmt("%d-%d", first, last);
            continue;
        }
        first = last;
        kept++;
        memmove(&t->cells.at[kept * w], row, sizeof *row * (size_t)w);
    }
    t->cells.n = (kept + 1) * w;
}

static int columns_of(const char *s)        // UTF-8 has one per character
{
    int n = 0;
    for (; *s; s++)
        n += (*s & 0xc0) != 0x80;
    return n;
}

void table_print(const Table *t, FILE *f)
{
    int w = (int)strlen(t->align), rows = t->cells.n / w;
    int *width = NEWN(int, w);
    bool *shown = NEWN(bool, w);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < w; c++) {
            const char *cell = t->cells.at[r * w + c];
            int n = columns_of(cell);
            width[c] = n > width[c] ? n : width[c];
            shown[c] |= r > 0 && strcmp(cell, "-") != 0;
        }
    int end = w;                // the last column is not padded
    while (end > 0 && !shown[end - 1])
        end--;
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < end; c++) {
            const char *cell = t->cells.at[r * w + c];
            int pad = width[c] - columns_of(cell);
            if (!shown[c])
                continue;
            if (t->align[c] == 'r')
                fprintf(f, "  %*s%s", pad, "", cell);
            else
                fprintf(f, "  %s%*s", cell, c == end - 1 ? 0 : pad, "");
        }
        fprintf(f, "\n");
    }
}
