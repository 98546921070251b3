/*
 * emit_cuda_slices.c - pieces of slices of several lengths: one text for all of them.
 *
 *   needs the pieces of a turn of one stage, as each slice has them; changes their texts.
 *
 * Slices of one length have one text anyway. Where lengths differ, so do rows and what is
 * counted from them. Texts that differ in such numbers alone become one: the numbers that are not
 * the same for all slices are read from `s`, in the comments too:
 *
 *     gemm(c, .., 544, 6144, 12288, false);       gemm(c, .., s[7], 6144, 12288, false);
 *     gemm(c, .., 512, 6144, 12288, false);
 */
#include <ctype.h>

#include "emit_cuda.h"

static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_' || c == '.'; }

/* The next number of the text from s on that stands alone: no part of a name, no index. NULL: there
 * is none. */
static const char *next_number(const char *text, const char *s, size_t *n)
{
    for (; *s; s += *n) {
        *n = 1;
        if (!isdigit((unsigned char)*s) || (s > text && is_word(s[-1])))
            continue;
        *n = strspn(s, "0123456789");
        bool index = s > text + 1 && s[-1] == '[' && is_word(s[-2]);
        if (!index && !is_word(s[*n]))
            return s;
    }
    return NULL;
}

/* The text with # for its numbers. */
static const char *without_numbers(const char *text, Numbers *found)
{
    static Text t;                      // the same room for every text
    size_t n = 0;
    const char *from = text;
    t.n = 0;
    for (const char *s = text; (s = next_number(text, s, &n)); s = from) {
        text_bytes(&t, from, (size_t)(s - from));
        text_bytes(&t, "#", 1);
        vec_add(found, strtoll(s, NULL, 10));
        from = s + n;
    }
    text_bytes(&t, from, strlen(from));
    return str_of(t.at, t.n);
}

/* The text with some of its numbers read from s: place[i] is where number i is, or NONE. */
static const char *reads_numbers(const char *text, const int *place)
{
    static Text t;
    size_t n = 0;
    const char *from = text;
    int i = 0;
    t.n = 0;
    for (const char *s = text; (s = next_number(text, s, &n)); s += n) {
        int k = place[i++];
        if (k == NONE)
            continue;
        text_bytes(&t, from, (size_t)(s - from));
        text_add(&t, "s[%d]", k);
        from = s + n;
    }
    text_bytes(&t, from, strlen(from));
    return str_of(t.at, t.n);
}

typedef struct { const char *shape; Numbers n; } Form;

/* Are numbers i and j the same in each of the n texts, of one shape? */
static bool go_together(const Form *const *form, int n, int i, int j)
{
    for (int k = 0; k < n; k++)
        if (form[k]->n.at[i] != form[k]->n.at[j])
            return false;
    return true;
}

/* One text for n of one shape: what is not the same in all of them is read from s. */
static void share(TurnPiece **piece, const Form *const *form, int n)
{
    int count = form[0]->n.n, next = piece[0]->own.n;
    int *place = NEWN(int, count + 1);
    for (int i = 0; i < count; i++) {
        bool varies = false;
        int like = 0;
        for (int k = 1; k < n; k++)
            varies |= form[k]->n.at[i] != form[0]->n.at[i];
        while (like < i && !(place[like] != NONE && go_together(form, n, like, i)))
            like++;
        place[i] = !varies ? NONE : like < i ? place[like] : next++;
        for (int k = 0; varies && like == i && k < n; k++)
            vec_add(&piece[k]->own, form[k]->n.at[i]);
    }
    for (int k = 0; k < n; k++)
        piece[k]->text = reads_numbers(piece[k]->text, place);
}

void cuda_share_numbers(TurnPiece *const *all, int n)
{
    Form *form = arena_get(perm, sizeof *form * (size_t)n);
    const Form **one = NEWN(const Form *, n);
    TurnPiece **piece = NEWN(TurnPiece *, n);
    for (int k = 0; k < n; k++)
        form[k].shape = without_numbers(all[k]->text, &form[k].n);
    for (int k = 0; k < n; k++) {
        int count = 0;
        bool seen = false;
        for (int i = 0; i < k; i++)
            seen |= form[i].shape == form[k].shape;
        for (int i = k; i < n && !seen; i++)
            if (form[i].shape == form[k].shape) {
                piece[count] = all[i];
                one[count++] = &form[i];
            }
        if (count > 1)
            share(piece, one, count);
    }
}
