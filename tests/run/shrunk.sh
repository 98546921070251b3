# `verify` of a model made smaller: its gradients still say something, however few classes and
# columns the model has.
# needs: llvm
. tests/run/_lib.sh

for set in vocab=64 vocab=27 vocab=2 hidden=64; do
    works "$t" verify "$M" --small --set model.$set
    is "$set: gradients that are compared" "$(grep -c 'no target counts' err)" = 0
    is "$set: and are not all zero" "$(grep -c 'gradients within 0.0e+00' out)" = 0
done
summary
