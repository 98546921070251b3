/*
 * test_util.c - memory for a while, and the tables that all passes rely on.
 */
#include <criterion/criterion.h>

#include "util.h"

static bool all_zero(const char *at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (at[i])
            return false;
    return true;
}

/* Small and large pieces in turn, each zeroed when it is handed out; filled. */
static void use(Arena *a)
{
    for (size_t n = 1; n < 20 << 20; n *= 3) {
        char *at = arena_get(a, n);
        cr_assert(all_zero(at, n), "%zu bytes are not zeroed", n);
        memset(at, 1, n);
    }
}

Test(util, memory_is_zeroed_again)
{
    char *kept = arena_get(scratch, 8);
    strcpy(kept, "kept");
    for (int i = 0; i < 3; i++) {
        Mark mark = arena_mark(scratch);
        use(scratch);
        Mark inner = arena_mark(scratch);
        use(scratch);
        arena_release(scratch, inner);
        use(scratch);
        arena_release(scratch, mark);
        cr_assert_str_eq(kept, "kept");
    }
    arena_reset(scratch);
    use(scratch);
}

Test(util, aside)
{
    Arena *before = perm;
    int *stays = NEWN(int, 1000);
    const char *word = NULL;
    stays[999] = 7;
    for (int i = 0; i < 3; i++) {
        Aside outer = aside_begin();
        VEC(int) list = { 0 };
        for (int k = 0; k < 100000; k++)
            vec_add(&list, k);
        Aside inner = aside_begin();
        cr_assert(all_zero((char *)NEWN(int, 100000), 400000));
        word = str_fmt("word %d", 1);
        aside_end(inner);
        cr_assert_eq(list.at[99999], 99999);
        aside_end(outer);
    }
    cr_assert_eq(perm, before);
    cr_assert_eq(stays[999], 7);
    cr_assert_str_eq(word, "word 1", "interned strings stay");
    cr_assert_eq(word, str("word 1"));
}

Test(util, maps)
{
    Map *m = map_new();
    for (int i = 0; i < 5000; i++)
        map_put(m, str_fmt("a longer key, number %d", i), i);
    for (int i = 0; i < 5000; i++)
        cr_assert_eq(map_get(m, str_fmt("a longer key, number %d", i)), i);
    cr_assert_eq(map_get(m, "a longer key, number 5000"), -1);
    int *at = map_at(m, "new");
    cr_assert_eq(*at, -1);
    *at = 3;
    cr_assert_eq(*map_at(m, "new"), 3);
}

Test(util, digits)
{
    char room[DIGITS];
    cr_assert_str_eq(str_digits(room, 0), "0");
    cr_assert_str_eq(str_digits(room, -12), "-12");
    cr_assert_str_eq(str_digits(room, INT64_MAX), "9223372036854775807");
    cr_assert_str_eq(str_digits(room, INT64_MIN), "-9223372036854775808");
}
