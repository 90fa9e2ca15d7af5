# tessera: build with PGXS.
#   make, make install     build and install the extension (PG_CONFIG=... selects the PostgreSQL)
#   make TESTS_BUILD=1     the same with what only tests need: injection points, and the extension tessera_test; never for use (doc/development.md)
#   make check-release     a build without TESTS_BUILD, elsewhere, has nothing that only tests need
#   make check             what breaks first, in two minutes: lints, unit tests, pg_regress, isolation, ten of the TAP files (test/sizes)
#   make test              install what is missing, build, install, run what must hold; PARTS="lint unit regress isolation tap", TESTS="001" select
#   make test-long         what takes too long for that; PARTS="tap chaos random valgrind" selects
#   make installcheck      pg_regress alone, in a temporary server, against the installed extension
#   make demo, demo-stop   a small cluster to try by hand
#   make bench             the benchmarks
#   make valgrind          a server under valgrind moves, aborts, recovers
#   make oracle            scripts of psql on a plain server and through a cluster, compared (DIR=test/oracle/cases)
#   make oracle-regress    PostgreSQL's own regression scripts, compared in the same way, statement by statement (test/oracle/regress)
#   make sqlsmith          random statements, compared in the same way (SEED=1 QUERIES=1000 MOVES=1)
#   make tpch, make tpcc   TPC-H's questions and TPC-C-like transactions, compared and timed
#   make bench-ddl         how long DDL takes, and its clients wait, while clients write
#   make bench-snapshots   what one snapshot over all shards costs
#   make bench-pauses      how long statements wait while ranges move (MOVES=100)
#   make compile-check     builds in a folder with another Debian release, against its PostgreSQL (SUITE=trixie: 17)
#   make chaos             servers fail under load, for ROUNDS=3 rounds or MINUTES=..., by SEED=1; doc/chaos.md
TESSERA_VERSION = 0.1.0
PG_CONFIG ?= pg_config

# Source tree; another one than the build tree if VPATH is given.
tree := $(if $(VPATH),$(VPATH),.)

EXTENSION    = extension/tessera
MODULE_big   = tessera
TEST_SOURCES := $(patsubst $(tree)/%,%,$(sort $(wildcard $(tree)/src/test_support/*.c)))
SOURCES     := $(sort src/control/calls.c $(filter-out $(TEST_SOURCES), \
	$(patsubst $(tree)/%,%,$(wildcard $(tree)/src/*.c $(tree)/src/*/*.c $(tree)/bgworkers/*.c))))
ifneq ($(TESTS_BUILD),)
SOURCES     += $(TEST_SOURCES)
endif
OBJS         = $(SOURCES:.c=.o)
INSTALL_SQL := $(sort $(wildcard $(tree)/extension/install/*.sql))

# Calls between nodes: types, callers' functions and SQL functions are made of one table.
CALLS        = $(tree)/src/control/calls.def
MAKE_CALLS   = perl $(tree)/src/control/generate.pl
GENERATED    = src/control/calls.h src/control/calls.c
DATA_built   = extension/tessera--$(TESSERA_VERSION).sql
DATA         = $(wildcard $(tree)/extension/tessera--*--*.sql)
ifneq ($(TESTS_BUILD),)
EXTENSION   += extension/tessera_test
TEST_SQL    := $(sort $(wildcard $(tree)/extension/test/*.sql))
DATA_built  += extension/tessera_test--$(TESSERA_VERSION).sql
endif
EXTRA_CLEAN  = $(GENERATED) $(OBJS:.o=.d) $(TEST_SOURCES:.c=.o) $(TEST_SOURCES:.c=.d) $(TEST_SOURCES:.c=.bc) src/common/build.h \
	extension/tessera_test--$(TESSERA_VERSION).sql results regression.diffs regression.out tmp_check

NO_INSTALLCHECK = 1

# libbson has another name from its version 2 on.
LIBRARIES   := libzmq $(shell pkg-config --exists libbson-1.0 2>/dev/null && echo libbson-1.0 || echo bson2) liblz4
# -isystem: warnings are for this project's own files.
PG_CPPFLAGS := -Isrc -I$(tree)/src -DTESSERA_VERSION='"$(TESSERA_VERSION)"' $(if $(PROTOCOL),-DTESSERA_PROTOCOL=$(PROTOCOL)) \
	-I$(shell $(PG_CONFIG) --includedir 2>/dev/null) $(patsubst -I%,-isystem %,$(shell pkg-config --cflags $(LIBRARIES) 2>/dev/null))
# -MMD: a changed header rebuilds what includes it.
PG_CFLAGS    = -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers -MMD -MP
SHLIB_LINK  := -lpq -lpthread $(shell pkg-config --libs $(LIBRARIES) 2>/dev/null) -Wl,--version-script=$(tree)/src/exports.map

PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
# "make check" alone needs nothing of PGXS, which has a target of that name.
ifneq ($(MAKECMDGOALS),check)
ifneq ($(wildcard $(PGXS)),)
ifneq ($(VPATH),)
$(shell mkdir -p extension $(sort $(dir $(OBJS))))
endif

include $(PGXS)

# What kind of build it is, for the compiler: changes only with TESTS_BUILD, and then what includes it is compiled again.
src/common/build.h: FORCE
	@echo '$(if $(TESTS_BUILD),#define TESSERA_TESTS 1,/* a release */)' > $@.new; if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi
$(OBJS): | src/common/build.h

# What exporters, Prometheus and Grafana read: extension/monitoring/README.md.
monitoring := $(datadir)/tessera/monitoring
install: install-monitoring
install-monitoring:
	@$(MKDIR_P) '$(DESTDIR)$(monitoring)'
	@$(INSTALL_DATA) $(addprefix $(tree)/extension/monitoring/,README.md postgres_exporter.yml sql_exporter.collector.yml alerts.yml dashboard.json) \
		'$(DESTDIR)$(monitoring)/'
uninstall: uninstall-monitoring
uninstall-monitoring:
	rm -rf '$(DESTDIR)$(monitoring)'
.PHONY: install-monitoring uninstall-monitoring

ifeq ($(TESTS_BUILD),)
# Over a build for tests: nothing of it stays.
install: uninstall-tests
uninstall-tests:
	@rm -f '$(DESTDIR)$(datadir)/extension/tessera_test.control' '$(DESTDIR)$(datadir)/extension/tessera_test--'*.sql
.PHONY: uninstall-tests
endif

$(shlib): $(tree)/src/exports.map
$(OBJS): src/control/calls.h
$(foreach object,$(OBJS),$(eval $(object:.o=.bc): $(object)))
-include $(OBJS:.o=.d)
else
all install:
	@echo "no PGXS found by '$(PG_CONFIG) --pgxs': install postgresql-server-dev-15, or run 'make test', which installs what is missing" >&2; exit 1
endif
endif

src/control/calls.h: $(CALLS) $(tree)/src/control/generate.pl
	$(MAKE_CALLS) header $(CALLS) > $@.new && mv $@.new $@

src/control/calls.c: $(CALLS) $(tree)/src/control/generate.pl
	$(MAKE_CALLS) source $(CALLS) > $@.new && mv $@.new $@

# Made anew whenever its content changes: a part that was removed is newer than nothing.
extension/tessera--$(TESSERA_VERSION).sql: $(INSTALL_SQL) $(CALLS) FORCE
	@$(MAKE_CALLS) sql $(CALLS) $(INSTALL_SQL) > $@.new; if cmp -s $@.new $@; then rm $@.new; else echo "making $@"; mv $@.new $@; fi

extension/tessera_test--$(TESSERA_VERSION).sql: $(TEST_SQL) FORCE
	@cat $(TEST_SQL) > $@.new; if cmp -s $@.new $@; then rm $@.new; else echo "making $@"; mv $@.new $@; fi

FORCE:

# Other makes and servers start below: nothing of this make's own flags may reach them.
run = env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS -u MAKEOVERRIDES PG_CONFIG='$(PG_CONFIG)' PARTS='$(PARTS)' TESTS='$(TESTS)' STRICT='$(STRICT)'

test:
	@$(run) bash $(tree)/test/run

ifeq ($(MAKECMDGOALS),check)
check:
	@$(run) SIZE=check bash $(tree)/test/run
endif

test-long:
	@$(run) SIZE=long bash $(tree)/test/run

installcheck:
	@$(run) bash $(tree)/test/run installcheck

check-release:
	@$(run) bash $(tree)/test/check_release

demo:
	@$(run) bash $(tree)/test/demo/run

demo-stop:
	@$(run) bash $(tree)/test/demo/stop

bench:
	@$(run) bash $(tree)/test/bench/run

oracle:
	@$(run) DIR='$(DIR)' bash $(tree)/test/oracle/run

oracle-regress:
	@$(run) bash $(tree)/test/oracle/regress

sqlsmith:
	@$(run) SEED='$(SEED)' QUERIES='$(QUERIES)' MOVES='$(MOVES)' bash $(tree)/test/oracle/random

tpch:
	@$(run) ORDERS='$(ORDERS)' bash $(tree)/test/oracle/tpch

tpcc:
	@$(run) WAREHOUSES='$(WAREHOUSES)' CLIENTS='$(CLIENTS)' SECONDS_EACH='$(SECONDS_EACH)' MOVES='$(MOVES)' bash $(tree)/test/oracle/tpcc

valgrind:
	@$(run) bash $(tree)/test/valgrind/run

compile-check:
	@$(run) SUITE='$(SUITE)' FOLDER='$(FOLDER)' MIRROR='$(MIRROR)' bash $(tree)/test/compile/run

bench-ddl:
	@$(run) BENCH=i bash $(tree)/test/bench/run

bench-snapshots:
	@$(run) BENCH=o bash $(tree)/test/bench/run

bench-pauses:
	@$(run) BENCH=h MOVES='$(MOVES)' bash $(tree)/test/bench/run

chaos:
	@$(run) SEED='$(SEED)' ROUNDS='$(ROUNDS)' MINUTES='$(MINUTES)' ROUND_SECONDS='$(ROUND_SECONDS)' CLIENTS='$(CLIENTS)' \
		MOVERS='$(MOVERS)' FAULTS='$(FAULTS)' SCHEDULE='$(SCHEDULE)' \
		bash $(tree)/test/chaos/run

.PHONY: FORCE test check test-long compile-check check-release installcheck demo demo-stop bench bench-ddl bench-snapshots bench-pauses \
	oracle oracle-regress \
	sqlsmith tpch tpcc valgrind chaos
