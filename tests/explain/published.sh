# Under the error: what the program of the nearest published runs would take in this layout.
python3 -c 'import json' 2>/dev/null || { echo "no python3"; exit 77; }
. tests/input/_lib.sh
E=$top/examples
planned() { # NAME MODEL CLUSTER SETTING...
    name=$1 model=$2 cluster=$3; shift 3
    for s; do set -- "$@" --set "$s"; shift; done
    works "$t" simulate "$E/$model.tcube" "$E/clusters/$cluster.tcube" "$@" --json && mv out "$name.json"
}
# GPT-3 on 1,024 A100: 140 TFLOP/s of each by Narayanan et al. (SC 2021), whose batch of 1536 is
# 4.51e18 FLOP with everything computed again: 31.5 s
gpt="cluster.nodes=128 plan.data=16 plan.pipeline=8 plan.microbatch=1 plan.slices=uniform(1)"
planned full gpt3-175b dgx-a100-128 $gpt plan.cube=[1,8,1] plan.recompute=full
planned some gpt3-175b dgx-a100-128 $gpt plan.cube=[1,8,1] plan.recompute=attention
planned cube gpt3-175b dgx-a100-128 $gpt plan.cube=[2,4,1] plan.recompute=full
planned part gpt3-175b dgx-a100-128 $gpt plan.cube=[1,8,1] "plan.recompute=full(6)"
planned slices gpt3-175b dgx-a100-128 $gpt plan.cube=[1,8,1] plan.recompute=full \
    "plan.slices=uniform(2)"
planned wide gpt3-175b dgx-a100-128 $gpt plan.cube=[1,8,1] train.precision=fp32
# nearest to runs of DeepSpeed, which adds up gradients of bf16 in fp32
deep="cluster.nodes=64 model.layers=64 model.hidden=10240 model.heads=80 plan.data=8 plan.pipeline=8"
deep="$deep plan.microbatch=1 plan.slices=uniform(1) plan.cube=[1,8,1] plan.recompute=full"
planned deep16 gpt3-175b dgx-a100-128 $deep train.precision=fp16
planned deepbf gpt3-175b dgx-a100-128 $deep train.precision=bf16
llama="cluster.nodes=1 train.precision=bf16 train.batch=64 train.sequence=2048 plan.microbatch=8"
planned fsdp llama dgx-a100-128 $llama plan.data=1 plan.cube=[8,1,1]
planned zero llama dgx-a100-128 $llama plan.data=8 plan.cube=[1,1,1] plan.zero=3 plan.microbatch=1
planned both llama dgx-a100-128 $llama plan.data=2 plan.cube=[1,4,1] plan.zero=3
planned other llama dgx-h100-128 $llama plan.data=1 plan.cube=[1,4,1] plan.pipeline=2
python3 - > facts 2>&1 <<'PY'
import json
def of(name):
    p = json.load(open(name + ".json"))["predicted"]
    return p["step_s"], p["published_s"], p["published_program"]
own, theirs, program = of("full")
assert own < theirs and abs(theirs / 31.5 - 1) < 0.07, (own, theirs)
assert program.startswith("megatron") and "scores stored" in program, program
assert "whole rows" in program and "rows cut" in of("some")[2], program
assert of("some")[1] < theirs
assert of("slices")[1] == theirs and "whole sequences" in of("slices")[2], of("slices")
for name in ("cube", "part", "wide", "both", "other"):
    assert of(name)[1:] == (None, None), (name, of(name))
fp, bf = of("deep16"), of("deepbf")
assert fp[2].startswith("megatron-deepspeed:") and bf[2].startswith("megatron-deepspeed bf16:"), (fp, bf)
assert fp[0] == bf[0] and 1.005 < bf[1] / fp[1] < 1.05, (fp, bf)
fsdp, zero = of("fsdp"), of("zero")
assert fsdp[2].startswith("fsdp: fused attention") and fsdp[1] == zero[1], (fsdp, zero)
PY
is "prices" "$(cat facts)" = ""
works "$t" plan "$E/gpt3-175b.tcube" "$E/clusters/dgx-a100-128.tcube" --set plan.pipeline=16 --set plan.cube=[1,8,1] \
    --set plan.recompute=full
is "the page's line" "$(grep -c '^  published .* program of those runs .*scores stored' out)" = 1
works "$t" simulate "$E/terapipe/gpt3-13b-5.tcube"
is "runs in slices" "$(grep -c '^  error .* terapipe.* token slices' out)" = 1
is "and no program for them" "$(grep -c '^  published' out)" = 0
summary
