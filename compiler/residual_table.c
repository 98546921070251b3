/* residual_table.c - written by `make predict-table`; see residual.h. */
#include "frame.h"
#include "residual.h"

const Residual residuals[] = {
    { "alpa_osdi22 V100", "sm_70", FAMILY_TENSOR,
      5, 0.031, -0.016, 2.63e+09, 6.96, &megatron_fp16 },
    { "alpa_osdi22 V100, ablation", "sm_70", FAMILY_TENSOR,
      17, 0.107, -0.107, 1.29e+09, 2.89, &alpa },
    { "korthikanti_2205_05198 A100", "sm_80", FAMILY_TENSOR,
      8, 0.034, 0.025, 2.13e+11, 92.6, &megatron },
    { "llm_foundry_mpt A100", "sm_80", FAMILY_SHARDED,
      70, 0.051, -0.020, 1.58e+09, 12.1, &fsdp },
    { "megatron_2020_tp_dp V100", "sm_70", FAMILY_TENSOR,
      4, 0.070, 0.056, 3.05e+09, 2.83, &megatron_fp16 },
    { "megatron_2020_tp_dp A100", "sm_80", FAMILY_TENSOR,
      8, 0.086, -0.078, 3.05e+09, 32, &megatron_fp16 },
    { "narayanan_sc21 A100", "sm_80", FAMILY_TENSOR,
      10, 0.021, -0.013, 4.74e+10, 490, &megatron_fp16 },
    { "terapipe_icml21 V100", "sm_70", FAMILY_SLICES,
      29, 0.097, -0.088, 3.1e+10, 332, &terapipe },
    { "torchtitan H100", "sm_90", FAMILY_SHARDED,
      9, 0.079, 0.038, 3.78e+10, 47, &titan_compiled },
    { "torchtitan A100", "sm_80", FAMILY_SHARDED,
      4, 0.051, -0.051, 2.67e+10, 64, &titan },
    { "vtrain_ground_truth_multi A100", "sm_80", FAMILY_TENSOR,
      36, 0.066, 0.034, 6.84e+10, 384, &deepspeed },
    { "vtrain_ground_truth_single A100", "sm_80", FAMILY_TENSOR,
      540, 0.071, 0.007, 4.2e+08, 5.03, &deepspeed },
};
const int nresiduals = 12;
