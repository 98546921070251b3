# Teracube: `make demo` shows everything, `make all` builds, `make check` tests.
#
#   make deps         installs what is missing (apt-get as root), else says how
#   make demo         builds, shows the plan of examples/tiny.tcube, trains it
#   make check        all tests every change must pass; T=folder for one folder
#   make check-all    the full lists of grids too (long)
#   make check-cuda   the long lists of the CUDA target
#   make cuda-report  registers, spills, instructions of its kernels
#   make bench        speed, against PyTorch where it is installed
#   make golden       rewrites the expected messages; read the diff
#   make style        lines over 100, tabs, trailing blanks
#   SAN=1             address and undefined-behaviour sanitizers, in build/san
#   V=1               shows the commands

SAN ?= 0
V   ?= 0
ifeq ($(SAN),1)
B     := build/san
SFLAG := -fsanitize=address,undefined -fno-sanitize-recover=undefined \
         -fno-omit-frame-pointer -DTERACUBE_SAN
else
B     := build
SFLAG :=
endif
Q    := $(if $(filter 1,$(V)),,@)
SHOW  = $(if $(filter 1,$(V)),:,printf '  %-6s%s\n')

# ---- what is here ------------------------------------------------------------

found = $(if $(1),yes,no ($(2)))
LLVM_CONFIG := $(shell command -v llvm-config-19)
HAVE_FLEX   := $(shell command -v flex)
HAVE_BISON  := $(shell command -v bison)
HAVE_NVCC   := $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
HAVE_MPI    := $(shell command -v mpirun)
LIBDIRS     := /usr/lib /usr/local/lib /usr/lib64 $(wildcard /usr/lib/*-linux-gnu)
HAVE_BLAS   := $(firstword $(wildcard $(addsuffix /openblas-pthread/libopenblas.so.0,$(LIBDIRS)) \
                                      /usr/local/lib/libopenblas.so.0))
HAVE_NCCL   := $(firstword $(wildcard $(addsuffix /libnccl.so*,$(LIBDIRS) /usr/local/cuda/lib64)))
HAVE_CRIT   := $(firstword $(wildcard /usr/include/criterion/criterion.h \
                                      /usr/local/include/criterion/criterion.h))

FOUND := flex $(call found,$(HAVE_FLEX),flex), \
  bison $(call found,$(HAVE_BISON),bison), \
  LLVM $(call found,$(LLVM_CONFIG),llvm-19-dev), \
  BLAS $(call found,$(HAVE_BLAS),libopenblas0-pthread), \
  CUDA $(call found,$(HAVE_NVCC),nvidia-cuda-toolkit), \
  NCCL $(call found,$(HAVE_NCCL),libnccl-dev), \
  MPI $(call found,$(HAVE_MPI),openmpi-bin), \
  Criterion $(call found,$(HAVE_CRIT),libcriterion-dev)

NEEDED   = $(if $(shell command -v cc),,gcc libc6-dev) $(if $(HAVE_FLEX),,flex) \
           $(if $(HAVE_BISON),,bison)
WANTED   = $(if $(LLVM_CONFIG),,llvm-19-dev) $(if $(HAVE_BLAS),,libopenblas0-pthread) \
           $(if $(HAVE_CRIT),,libcriterion-dev) $(if $(HAVE_MPI),,openmpi-bin libopenmpi-dev)

# ---- flags and sources -------------------------------------------------------

CC     ?= cc
WARN   := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
CFLAGS := -std=c11 -D_GNU_SOURCE= -g $(WARN) -Icompiler -Iruntime -I$(B) $(SFLAG)
LIBS   := -lm -lpthread -ldl

compiler := $(filter-out compiler/emit_llvm%,$(wildcard compiler/*.c))
runtime  := $(wildcard runtime/*.c)
ifneq ($(LLVM_CONFIG),)
llvm       := $(wildcard compiler/emit_llvm*.c)
LLVM_FLAGS := -isystem $(shell $(LLVM_CONFIG) --includedir)
LLVM_LIBS  := -L$(shell $(LLVM_CONFIG) --libdir) -lLLVM-19
endif

COMPILER := $(compiler:%.c=$(B)/%.o) $(B)/parser.o $(B)/lexer.o $(B)/prelude.o
RUNTIME  := $(runtime:%.c=$(B)/%.o)
OBJECTS  := $(COMPILER) $(RUNTIME)
LLVM     := $(llvm:%.c=$(B)/%.o)

# ---- build -------------------------------------------------------------------

.PHONY: all found deps demo unit check check-all check-cuda cuda-report bench golden
.PHONY: predict predict-table
.PHONY: style clean
.DELETE_ON_ERROR:
.SECONDARY:

all: found $(B)/teracube $(B)/libteracube_rt.a $(if $(LLVM),$(B)/teracube_llvm.so)

found:
	@echo '$(FOUND)'

$(B)/teracube: $(OBJECTS)
	@$(SHOW) link $@
	$(Q)$(CC) $(SFLAG) $(LTO) -rdynamic -o $@ $(OBJECTS) $(LIBS)

# What makes machine code, opened when a command needs it (compiler/llvm_load.c).
$(B)/teracube_llvm.so: $(LLVM)
	@$(SHOW) link $@
	$(Q)$(CC) $(SFLAG) -shared -o $@ $(LLVM) $(LLVM_LIBS)

# The runtime alone: what executables made by `teracube build` are linked with.
$(B)/libteracube_rt.a: $(RUNTIME) $(B)/templates/c/program_main.o
	@$(SHOW) ar $@
	$(Q)rm -f $@ && ar rcs $@ $^

# What `tune` asks a million times; gcc sees through the borders of these files. In fat objects,
# so that tests may link without.
ASKED := tune tune_slices estimate cost price stretch schedule slice
GCC   := $(findstring Free Software,$(shell $(CC) --version 2> /dev/null))
LTO   := $(if $(GCC),$(if $(SFLAG),,-flto=auto))
FAST  := -O3 $(if $(LTO),$(LTO) -ffat-lto-objects)
$(ASKED:%=$(B)/compiler/%.o): MORE := $(FAST)

$(B)/compiler/%.o: compiler/%.c $(B)/flags
	@$(SHOW) cc $<
	$(Q)$(CC) $(CFLAGS) -O2 $(MORE) $(if $(filter compiler/emit_llvm%,$<),-fPIC $(LLVM_FLAGS)) \
	  -MMD -MP -c -o $@ $<

$(B)/templates/c/%.o: templates/c/%.c $(B)/flags
	@$(SHOW) cc $<
	$(Q)$(CC) $(CFLAGS) -O2 -MMD -MP -c -o $@ $<

$(B)/runtime/%.o: runtime/%.c $(B)/flags
	@$(SHOW) cc $<
	$(Q)$(CC) $(CFLAGS) -O3 -MMD -MP -c -o $@ $<

# Generated code is not held to our warnings.
$(B)/%.o: $(B)/%.c $(B)/flags
	@$(SHOW) cc $<
	$(Q)$(CC) $(filter-out $(WARN),$(CFLAGS)) -O2 -MMD -MP -c -o $@ $<

$(B)/parser.c $(B)/parser.h &: grammar/parser.y $(B)/flags
	@$(SHOW) bison $<
	$(Q)bison -Wall -Wno-yacc -o $(B)/parser.c --header=$(B)/parser.h $<

$(B)/lexer.c $(B)/lexer.h &: grammar/lexer.l $(B)/flags
	@$(SHOW) flex $<
	$(Q)flex -o $(B)/lexer.c --header-file=$(B)/lexer.h $<

$(B)/prelude.c: grammar/prelude.tcube $(B)/flags
	@$(SHOW) embed $<
	$(Q){ echo 'extern const char prelude_text[];'; echo 'const char prelude_text[] ='; \
	  sed 's/\\/\\\\/g; s/"/\\"/g; s/^/    "/; s/$$/\\n"/' $<; echo '    "";'; } > $@

# Everything is made again when the flags change (LLVM was installed, say).
$(B)/flags: FORCE
	@mkdir -p $(B)/compiler $(B)/runtime $(B)/unit $(B)/predict $(B)/templates/c
	@echo '$(CC) $(CFLAGS) $(FAST) $(LLVM_CONFIG)' | cmp -s - $@ || \
	  echo '$(CC) $(CFLAGS) $(FAST) $(LLVM_CONFIG)' > $@
.PHONY: FORCE
FORCE:

$(COMPILER): | $(B)/parser.h $(B)/lexer.h

# ---- tests -------------------------------------------------------------------

unit_test := $(wildcard tests/unit/test_*.c)
ifeq ($(LLVM),)
unit_test := $(shell grep -L '^ \* needs:.* llvm' $(unit_test))
endif
unit_help := $(filter-out tests/unit/test_%,$(wildcard tests/unit/*.c))
UNIT      := $(unit_test:tests/unit/%.c=$(B)/unit/%)

unit: $(UNIT)

$(B)/unit/%.o: tests/unit/%.c $(B)/flags
	@$(SHOW) cc $<
	$(Q)$(CC) $(CFLAGS) -O1 $(LLVM_FLAGS) $(if $(LLVM),-DHAVE_LLVM) -Itests/unit -MMD -MP -c \
	  -o $@ $<

# Tests call the compiler too: its own main stands aside.
$(B)/unit/main.o: compiler/main.c $(B)/flags
	@$(SHOW) cc $<
	$(Q)$(CC) $(filter-out -Wmissing-prototypes,$(CFLAGS)) -O1 -Dmain=teracube_main -MMD -MP \
	  -c -o $@ $<

$(B)/unit/test_%: $(B)/unit/test_%.o $(unit_help:tests/unit/%.c=$(B)/unit/%.o) \
    $(B)/unit/main.o $(OBJECTS) $(LLVM)
	@$(SHOW) link $@
	$(Q)$(CC) $(SFLAG) $(if $(LTO),-fno-lto) -o $@ $(filter-out $(B)/compiler/main.o,$^) -lcriterion $(LLVM_LIBS) $(LIBS)

check: all $(B)/predict/predict
	@SAN=$(SAN) tests/run.sh $(T)

check-all: all $(B)/predict/predict
	@SAN=$(SAN) ALL=1 tests/run.sh $(T)

golden: all
	@SAN=$(SAN) GOLDEN=1 tests/run.sh $(T)

bench: all
	@tests/bench/bench.sh

# The model over published rows (tests/predict/README.md); the rows are not in this tree.
PUBLISHED ?= ../shared/published
predict_c := $(wildcard tests/predict/*.c)

$(B)/predict/%.o: tests/predict/%.c $(B)/flags
	@$(SHOW) cc $<
	$(Q)$(CC) $(CFLAGS) -O2 -MMD -MP -c -o $@ $<

$(B)/predict/predict: $(predict_c:tests/%.c=$(B)/%.o) $(B)/unit/main.o $(OBJECTS)
	@$(SHOW) link $@
	$(Q)$(CC) $(SFLAG) $(LTO) -rdynamic -o $@ $(filter-out $(B)/compiler/main.o,$^) $(LIBS)

# V=1: each sweep too.
PREDICT_ROWS := $(PUBLISHED) tests/predict/runs
predict: $(B)/predict/predict
	@if [ -d $(PUBLISHED) ]; then $< $(PREDICT_ROWS); \
	  $(if $(filter 1,$(V)),$< $(PREDICT_ROWS) --sweeps;) \
	else echo "predict: skipped: no folder $(PUBLISHED) with published rows"; fi

# What of it is compiled in; only where the rows are at hand.
predict-table: $(B)/predict/predict
	$(Q)$< $(PREDICT_ROWS) --table > $(B)/residual_table.c
	$(Q)mv $(B)/residual_table.c compiler/residual_table.c

check-cuda: all
	@ALL=1 tests/run.sh cuda cudasim

cuda-report: all
	@tests/bench/cuda_report.sh

# ---- the rest ----------------------------------------------------------------

deps:
	@missing="$(strip $(NEEDED) $(WANTED))"; \
	if [ -z "$$missing" ]; then echo "nothing is missing"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq; \
	  for p in $$missing; do \
	    echo "installing $$p"; \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	      $$p >/dev/null || echo "could not install $$p"; \
	  done; \
	else \
	  echo "missing; install with:"; echo "    sudo apt-get install $$missing"; \
	fi; \
	command -v cc >/dev/null && command -v flex >/dev/null && command -v bison >/dev/null

demo:
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory all
	@for args in "plan examples/tiny.tcube --set plan.cube=[2,2,2]" \
	    "run examples/tiny.tcube" "run examples/tiny.tcube --set plan.cube=[2,2,2] --steps 5"; do \
	  echo; echo "$$ teracube $$args"; $(B)/teracube $$args || exit; \
	done

# Inputs of tests may look like anything.
style:
	@files=$$(find Makefile .ci compiler runtime grammar templates examples tests -type f \
	    \( -name '*.[chly]' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o \
	       -name '*.awk' -o -name simcc -o -name '*.sh' -o -name '*.py' \
	       -o -name '*.tcube' -o -name run \) \
	    | grep -v '^tests/.*tcube$$'); \
	bad=$$(grep -nHE '^.{101,}|[[:blank:]]$$' $$files; \
	  grep -nHP '\t' $$(echo "$$files" | grep -v Makefile)); \
	if [ -n "$$bad" ]; then echo "$$bad"; exit 1; else echo "style: nothing to say"; fi

clean:
	$(Q)rm -rf build

-include $(OBJECTS:.o=.d) $(LLVM:.o=.d) $(B)/templates/c/program_main.d
-include $(wildcard $(B)/unit/*.d $(B)/predict/*.d)
