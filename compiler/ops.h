/*
 * ops.h - one row per operator of the graph.
 *
 *   OP(NAME, "word", class)
 *
 * class: how partition and the emitters treat it.
 *   C_ROW    elementwise; fused into row programs
 *   C_RED    row reduction (one number per row and part); ends up in a row program,
 *            or cuts it where the width is split over devices
 *   C_ACC    adds into a parameter's gradient
 *   C_OTHER  has a kernel or a collective of its own
 *
 * Operands and results (T tokens, W width, g parts of a row):
 *   A row operand of width w inside a result of width W is read at column
 *   c / (W/w): w = W plainly, w = 1 one number per row, w = g one per part. A
 *   vector of length P is read at column c % P. A number is a number.
 */
/* elementwise */
OP(ADD,      "add",      C_ROW)     // a + b
OP(SUB,      "sub",      C_ROW)
OP(MUL,      "mul",      C_ROW)
OP(DIV,      "div",      C_ROW)
OP(MAX,      "maximum",  C_ROW)     // ties: the first operand
OP(MIN,      "minimum",  C_ROW)
OP(GE,       "ge",       C_ROW)     // 1 where a >= b, else 0   (gradients of MAX, MIN)
OP(EQ,       "eq",       C_ROW)     // 1 where a == b, else 0   (gradient of ROWMAX)
OP(NEG,      "neg",      C_ROW)
OP(POW,      "pow",      C_ROW)     // a ^ c, c a constant (attribute c)
OP(EXP,      "exp",      C_ROW)
OP(LOG,      "log",      C_ROW)
OP(SQRT,     "sqrt",     C_ROW)
OP(RSQRT,    "rsqrt",    C_ROW)
OP(TANH,     "tanh",     C_ROW)
OP(SIGMOID,  "sigmoid",  C_ROW)
OP(ERF,      "erf",      C_ROW)
OP(ABS,      "abs",      C_ROW)
OP(SIGN,     "sign",     C_ROW)     // -1, 0, 1
OP(SIN,      "sin",      C_ROW)
OP(COS,      "cos",      C_ROW)
OP(COLUMN,   "column",   C_ROW)     // index inside the part; in[0] gives the width
OP(DROPOUT,  "dropout",  C_ROW)     // a * mask / (1-c); mask from salt, token, feature
OP(SPREAD,   "spread",   C_ROW)     // in[0] (width 1, g or a vector) read at the width of in[1]
/* row reductions: in[0] [T,W] -> [T,parts] */
OP(SUM,      "sum",      C_RED)
OP(VAR,      "var",      C_RED)     // mean of (x - mean)^2
OP(ROWMAX,   "rowmax",   C_RED)
OP(FIRST,    "first",    C_RED)     // smallest index in the part where in[0] == in[1]
/* into gradients of parameters: out[..] += */
OP(COLSUM,   "colsum",   C_ACC)     // in[0] [T,W] -> vector [P], column c to c % P
OP(LINEAR_DW,"linear_dw",C_ACC)     // x, dy -> dW1.. : xT dy (transposed: dyT x)
OP(EMBED_DW, "embed_dw", C_ACC)     // ids, dy -> dE
/* the rest */
OP(LINEAR,   "linear",   C_OTHER)   // x, W1, W2.. -> [x W1 | x W2 ..]; transposed: x WT
OP(LINEAR_DX,"linear_dx",C_OTHER)   // dy, W1, W2.. -> dy [W1 | W2 ..]T; transposed: dy W
OP(PSUM,     "psum",     C_OTHER)   // a + b + .. of LINEAR, LINEAR_DX or EMBED results: added
                                    // while partial, before one reduce-scatter (by place.c)
OP(EMBED,    "embed",    C_OTHER)   // ids, E
OP(SPLIT,    "split",    C_OTHER)   // x -> n results of widths sizes[], inside each of `parts`
OP(CONCAT,   "concat",   C_OTHER)   // inverse of SPLIT
OP(ROPE,     "rope",     C_OTHER)   // x; inverse turns the other way
OP(ATTN,     "attention",C_OTHER)   // q, k, v -> o, lse [T,heads]
OP(ATTN_DX,  "attention_dx", C_OTHER) // q, k, v, o, lse, do -> dq, dk, dv
OP(CE,       "cross_entropy", C_OTHER) // logits, targets -> loss (a T_LOSS)
OP(CE_DX,    "cross_entropy_dx", C_OTHER) // logits, targets -> dlogits of the mean loss
