/*
 * settings_mirror.h
 *	  Settings of this session that statements on other nodes must run under.
 *
 * Mirrored: every setting that a statement can change and that came from the database, the role, the client or the session, except those that are
 * about the connection or the transaction; and, wherever they come from, those that change what a value or a name means.
 */
#ifndef TESSERA_SETTINGS_MIRROR_H
#define TESSERA_SETTINGS_MIRROR_H

#include "postgres.h"

/*
 * Fingerprint of the mirrored settings as they are now (never 0 or 1). Walks all that can matter: well below a microsecond, so it is taken for every
 * statement.
 */
extern uint64 tessera_mirror_fingerprint(void);

/*
 * The settings, as text array literals of equal length. setters: who set it, if that counts where it may be a setting for superusers: an empty name:
 * a role that does not exist any more; NULL: by all rights (a superuser, a configuration file, ALTER ROLE), or any user may set it.
 */
typedef struct TesseraMirroredSettings
{
	char	   *names;
	char	   *values;
	char	   *setters;
} TesseraMirroredSettings;

/* palloc'd. */
extern void tessera_mirror_collect(TesseraMirroredSettings *mirrored);

#endif							/* TESSERA_SETTINGS_MIRROR_H */
