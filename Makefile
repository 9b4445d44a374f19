# tandem: `make help` lists what there is to make.
#
# Variants, each in a build folder of its own: MPI=0 (one process, no MPI), SAN=address|thread (sanitizers).
MPI ?= 1
SAN ?=
PREFIX ?= /usr/local
ARCH ?= native
V ?= 0

variant := $(if $(filter 0,$(MPI)),-nompi)$(if $(SAN),-$(SAN))
B := build$(if $(variant),/variant$(variant))
Q := $(if $(filter 0,$(V)),@)
version := $(shell cat VERSION)

# Optimisation: -fno-math-errno and -fno-trapping-math let loops vectorise; NaN and infinity keep their meaning.
OPT := $(if $(SAN),-O1 -fno-omit-frame-pointer,-O3 -march=$(ARCH) -fno-math-errno -fno-trapping-math)
CFLAGS ?= -g
ALL_CFLAGS := -std=gnu11 -Wall -Wextra -fopenmp -I. -DTANDEM_VERSION='"$(version)"' $(OPT) $(CFLAGS)
LDLIBS := -ldnnl -lcjson -linih -lpthread -lm

ifeq ($(SAN),address)
ALL_CFLAGS += -fsanitize=address,undefined -fno-sanitize-recover=undefined
else ifneq ($(SAN),)
ALL_CFLAGS += -fsanitize=$(SAN)
endif

ifneq ($(MPI),0)
mpi_cflags := $(shell mpicc --showme:compile 2>/dev/null)
mpi_ldlibs := $(shell mpicc --showme:link 2>/dev/null)
endif

sources := $(wildcard kernels/*.c kernels/cpu/*.c kernels/cuda/absent.c comm/*.c comm/mpi/*.c model/*.c data/*.c train/*.c)
ifeq ($(MPI),0)
sources := $(filter-out comm/mpi/%,$(sources))
else
sources := $(filter-out comm/mpi_absent.c,$(sources))
endif
library_objects := $(patsubst %.c,$B/%.o,$(filter-out train/main.c,$(sources)))
unit_tests := $(patsubst tests/%.c,$B/tests/%,$(wildcard tests/test_*.c))
bench_programs := $(patsubst tests/%.c,$B/tests/%,$(wildcard tests/bench_*.c))

.PHONY: all help deps demo test check unit-tests bench bench-programs install format lint clean
all: $B/tandem ## build build/tandem (default)

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
