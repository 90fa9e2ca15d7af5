/*
 * admin.h
 *	  What init.c calls of admin/.
 */
#ifndef TESSERA_ADMIN_H
#define TESSERA_ADMIN_H

/* From _PG_init: what may not run in a schema script (join.c). */
extern void tessera_join_init(void);

#endif							/* TESSERA_ADMIN_H */
