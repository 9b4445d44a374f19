# tandem: `make help` lists what there is to make.
#
# Variants, each in a build folder of its own: MPI=0 (one process, no MPI), SAN=address|thread (sanitizers).
MPI ?= 1
SAN ?=
PREFIX ?= /usr/local
ARCH ?= native
V ?= 0
# Debian's own Python, for which apt installs the test packages
PYTHON ?= /usr/bin/python3

variant := $(if $(filter 0,$(MPI)),-nompi)$(if $(SAN),-$(SAN))
B := build$(if $(variant),/variant$(variant))
Q := $(if $(filter 0,$(V)),@)
version := $(shell cat VERSION)

# Optimisation: -fno-math-errno and -fno-trapping-math let loops vectorise; NaN and infinity keep their meaning.
OPT := $(if $(SAN),-O1 -fno-omit-frame-pointer,-O3 -march=$(ARCH) -fno-math-errno -fno-trapping-math)
CFLAGS ?= -g
ALL_CFLAGS := -std=gnu11 -Wall -Wextra -fopenmp -I. -DTANDEM_VERSION='"$(version)"' $(OPT) $(CFLAGS)
LDLIBS := -ldnnl -lcjson -linih -lz -lpthread -lm

ifeq ($(SAN),address)
ALL_CFLAGS += -fsanitize=address,undefined -fno-sanitize-recover=undefined
else ifneq ($(SAN),)
ALL_CFLAGS += -fsanitize=$(SAN)
endif

ifneq ($(MPI),0)
mpi_cflags := $(shell mpicc --showme:compile 2>/dev/null)
mpi_ldlibs := $(shell mpicc --showme:link 2>/dev/null)
endif

sources := $(wildcard kernels/*.c kernels/cpu/*.c kernels/cuda/absent.c comm/*.c comm/compress/*.c comm/mpi/*.c model/*.c data/*.c train/*.c train/schedule/*.c)
ifeq ($(MPI),0)
sources := $(filter-out comm/mpi/%,$(sources))
else
sources := $(filter-out comm/mpi_absent.c,$(sources))
endif
library_objects := $(patsubst %.c,$B/%.o,$(filter-out train/main.c,$(sources)))
formatted := $(wildcard kernels/*.[ch] kernels/cpu/*.[ch] kernels/cuda/*.[ch] comm/*.[ch] comm/mpi/*.[ch] comm/compress/*.[ch] model/*.[ch] data/*.[ch] train/*.[ch] train/schedule/*.[ch] tests/*.[ch])
unit_tests := $(patsubst tests/%.c,$B/tests/%,$(wildcard tests/test_*.c))
bench_programs := $(patsubst tests/%.c,$B/tests/%,$(wildcard tests/bench_*.c))

ifneq ($(MPI),0)
ifeq ($(mpi_cflags)$(filter help deps demo test clean format,$(MAKECMDGOALS)),)
$(error mpicc was not found: run `make deps` (or `make MPI=0` for a program of one process))
endif
endif

.PHONY: all help deps demo test unit-tests bench bench-programs install format lint clean FORCE
all: $B/tandem ## build build/tandem (the default)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  Variants: MPI=0 (one process, no MPI), SAN=address|thread (sanitizers), ARCH=..., V=1 (show commands)"

deps: ## install the Debian packages that building needs and that are missing
	@scripts/install_deps.sh build

# Those that install first start make anew, so that it finds what is there now.
demo: ## install, build, get a real text, train on two ranks for about two minutes, sample
	@scripts/install_deps.sh build demo
	@$(MAKE) --no-print-directory all
	@scripts/demo.sh

test: ## install, build, and run all tests
	@scripts/install_deps.sh build test
	@$(MAKE) --no-print-directory all unit-tests
	@$(PYTHON) -m pytest -q -p no:cacheprovider tests $(TESTS)

bench: all bench-programs ## measure what docs/benchmarks.md reports, beside its ceilings
	@$(PYTHON) scripts/bench.py

install: all ## install into PREFIX (default /usr/local)
	install -D -m 755 $B/tandem $(DESTDIR)$(PREFIX)/bin/tandem

format: ## format the sources with clang-format
	@scripts/install_deps.sh lint
	clang-format -i $(formatted)

lint: ## check format, C with clang-tidy, shell with shellcheck
	@scripts/install_deps.sh lint
	clang-format --dry-run -Werror $(formatted)
	shellcheck scripts/*.sh .ci/run
	clang-tidy --quiet $(filter %.c,$(sources)) -- $(ALL_CFLAGS) $(mpi_cflags)

clean: ## remove what was built
	rm -rf build

$B/tandem: $B/train/main.o $B/libtandem.a
	@echo "  link  $@"
	$Q$(CC) $(ALL_CFLAGS) -o $@ $^ $(mpi_ldlibs) $(LDLIBS)

$B/libtandem.a: $(library_objects)
	@echo "  ar    $@"
	$Qrm -f $@ && ar rcs $@ $^

# Only comm/mpi knows MPI's headers. Objects depend on the flags they were built with.
$B/comm/mpi/%.o: ALL_CFLAGS += $(mpi_cflags)
$B/%.o: %.c $B/flags
	@mkdir -p $(@D)
	@echo "  cc    $<"
	$Q$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

$B/tests/%: $B/tests/%.o $B/libtandem.a
	@echo "  link  $@"
	$Q$(CC) $(ALL_CFLAGS) -o $@ $^ $(mpi_ldlibs) -lcmocka $(LDLIBS)

$B/flags: FORCE
	@mkdir -p $B
	@echo '$(CC) $(ALL_CFLAGS) $(mpi_cflags) $(version)' | cmp -s - $@ || echo '$(CC) $(ALL_CFLAGS) $(mpi_cflags) $(version)' > $@
FORCE:

unit-tests: $(unit_tests)
bench-programs: $(bench_programs)

-include $(shell find $B -name '*.d' 2>/dev/null)
.SECONDARY:
