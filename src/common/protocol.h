/*
 * protocol.h
 *	  Version of what nodes say to each other; it grows with every change of an internal_* function or of what goes along with a statement.
 */
#ifndef TESSERA_PROTOCOL_H
#define TESSERA_PROTOCOL_H

#define TESSERA_PROTOCOL 3

#endif							/* TESSERA_PROTOCOL_H */
