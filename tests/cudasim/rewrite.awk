# rewrite.awk - plain CUDA C++ into what g++ compiles; lines keep their numbers.
#
#   k<<<grid, block, smem, stream>>>(args)  ->  cudasim::config("k", (k), grid, ...)(args)
#   __shared__ T n[A][B];                   ->  T (&n)[A][B] = cudasim::shared<T [A][B]>(..);
#   extern __shared__ T n[];                ->  T *n = (T *)cudasim::dynamic_shared();
#
# One variable in each __shared__ declaration. A launch's name may carry template arguments.

{ text = text $0 "\n" }

function wrong(what, where) {
    n = gsub(/\n/, "\n", where) + 1
    printf "%s:%d: cudasim: %s\n", FILENAME, n, what > "/dev/stderr"
    failed = 1
}

function launches(    out, at, head, name, i, c, depth, rest, stop, cfg) {
    out = ""
    while ((at = index(text, "<<<")) > 0) {
        head = substr(text, 1, at - 1)
        rest = substr(text, at + 3)
        sub(/[ \t]+$/, "", head)
        i = length(head)                        # backwards over NAME or NAME<...>
        if (substr(head, i, 1) == ">")
            for (depth = 0; i > 0; i--) {
                c = substr(head, i, 1)
                if (c == ">") depth++
                else if (c == "<" && --depth == 0) { i--; break }
            }
        while (i > 0 && substr(head, i, 1) ~ /[A-Za-z0-9_:]/) i--
        name = substr(head, i + 1)
        stop = index(rest, ">>>")
        if (name == "" || !stop) {              # not a launch: in a comment, perhaps
            out = out substr(text, 1, at + 2)
            text = rest
            continue
        }
        cfg = substr(rest, 1, stop - 1)
        c = name
        gsub(/[ \t\n"]/, "", c)
        out = out substr(head, 1, i) "cudasim::config(\"" c "\", (" name "), " cfg ")"
        text = substr(rest, stop + 3)
    }
    text = out text
}

function shareds(    out, at, head, rest, stop, decl, dims, name, is_extern, align) {
    out = ""
    while (match(text, /(extern[ \t\n]+)?__shared__[^;]*;/)) {
        at = RSTART
        decl = substr(text, at, RLENGTH - 1)
        head = substr(text, 1, at - 1)
        rest = substr(text, at + RLENGTH)
        is_extern = decl ~ /^extern/
        lines = decl
        gsub(/[^\n]/, "", lines)
        gsub(/\n/, " ", decl)
        sub(/^extern[ \t]+/, "", decl)
        sub(/__shared__/, "", decl)
        align = ""
        if (match(decl, /(__align__|alignas)[ \t]*\([^)]*\)/)) {
            align = substr(decl, RSTART, RLENGTH)
            decl = substr(decl, 1, RSTART - 1) substr(decl, RSTART + RLENGTH)
        }
        dims = ""
        if (match(decl, /\[.*$/)) {
            dims = substr(decl, RSTART)
            decl = substr(decl, 1, RSTART - 1)
        }
        sub(/[ \t]+$/, "", decl)
        if (!match(decl, /[A-Za-z_][A-Za-z0-9_]*$/) || decl ~ /[,=]/ && decl !~ /</ ||
            dims ~ /,[ \t]*[A-Za-z_*]/) {
            wrong("cannot read this __shared__ declaration (one variable in each)", out head)
            decl = name = "x"
        } else {
            name = substr(decl, RSTART)
            decl = substr(decl, 1, RSTART - 1)
            gsub(/^[ \t]+|[ \t]+$/, "", decl)
        }
        if (is_extern)
            decl = decl " *" name " = (" decl " *)cudasim::dynamic_shared();"
        else if (align != "") {
            sub(/__align__/, "alignas", align)
            decl = "struct " align " cudasim_" name "_t { " decl " v" dims "; }; auto &" name \
                " = cudasim::shared<cudasim_" name "_t>(\"" name "\", __COUNTER__).v;"
        } else
            decl = decl " (&" name ")" dims " = cudasim::shared<" decl " " dims ">(\"" name \
                "\", __COUNTER__);"
        out = out head decl lines
        text = rest
    }
    text = out text
}

END {
    launches()
    shareds()
    printf "#line 1 \"%s\"\n%s", NAME != "" ? NAME : FILENAME, text
    exit failed
}
