/* attention.cu - every kernel of attention.cuh for head size SIZE, to be compiled. */
#include "attention.cuh"

#define ATTENTION(S, HEAD) \
    template cudaError_t attn_forward<S, HEAD>(const AttnSpec &, const AttnTiles &, const S *, \
                                               const S *, const S *, S *, real_of<S> *, \
                                               cudaStream_t); \
    template cudaError_t attn_backward<S, HEAD>(const AttnSpec &, const AttnTiles &, int64_t, \
                                                const S *, const S *, const S *, const S *, \
                                                const real_of<S> *, const S *, real_of<S> *, \
                                                S *, real_of<S> *, real_of<S> *, bool, \
                                                cudaStream_t);

ATTENTION(bf16, SIZE)
#ifdef PLAIN
ATTENTION(float, SIZE)
ATTENTION(double, SIZE)
#endif
