/*
 * privilege.h
 *	  Who may change the cluster, who may read its catalog whole, and who counts as another node.
 */
#ifndef TESSERA_PRIVILEGE_H
#define TESSERA_PRIVILEGE_H

#include "postgres.h"

/* True if the role is a superuser or a member of tessera_admin; or of tessera_internal. Catalog access. */
extern bool tessera_is_admin(Oid user);
extern bool tessera_is_internal(Oid user);

/* ERROR 42501 unless the session's effective user is a superuser or a member of tessera_admin. */
extern void tessera_require_admin(void);

/* True if the effective user is a superuser, or a member of tessera_admin or of tessera_internal: what the catalog says is not hidden from it. */
extern bool tessera_may_read_catalog(void);

/* ERROR 42501 unless the effective user is a superuser or a member of tessera_internal, as the role of an internal connection is. */
extern void tessera_require_internal(void);

#endif							/* TESSERA_PRIVILEGE_H */
