# tessera: build with PGXS. `make test`, `make demo`, `make bench`, `make installcheck`; see README.md.
EXTENSION    = tessera
VERSION      = 0.1.0
MODULE_big   = tessera
OBJS         = $(patsubst %.c,%.o,$(sort $(wildcard src/*.c src/*/*.c bgworkers/*.c)))
INSTALL_SQL  = $(sort $(wildcard extension/install/*.sql))
DATA_built   = extension/$(EXTENSION)--$(VERSION).sql
DATA         = $(wildcard extension/$(EXTENSION)--*--*.sql)

PG_CONFIG   ?= pg_config
PG_CPPFLAGS  = -I$(srcdir)/src -I$(shell $(PG_CONFIG) --includedir) $(shell pkg-config --cflags libzmq libbson-1.0 liblz4)
PG_CFLAGS    = -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers
SHLIB_LINK   = -lpq $(shell pkg-config --libs libzmq libbson-1.0 liblz4)

srcdir ?= .
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

extension/$(EXTENSION)--$(VERSION).sql: $(INSTALL_SQL)
	cat $^ > $@
