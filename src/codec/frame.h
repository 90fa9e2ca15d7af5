/*
 * frame.h
 *	  LZ4 frames (content size and content checksum set) for the payload of exchange messages. No sockets, no catalog, no server state: fuzzable.
 */
#ifndef TESSERA_FRAME_H
#define TESSERA_FRAME_H

#include <stdbool.h>
#include <stddef.h>

/* Largest frame that tessera_frame_compress may write for size bytes. */
extern size_t tessera_frame_bound(size_t size);

/* Compresses into dst (of at least tessera_frame_bound bytes). Returns the frame's size; 0 and *error (static text) on failure. */
extern size_t tessera_frame_compress(void *dst, size_t capacity, const void *src, size_t size, const char **error);

/* Content size that the frame's header states; false and *error if the header is bad, states none, or one over limit. Call before allocating. */
extern bool tessera_frame_content_size(const void *src, size_t size, size_t limit, size_t *content, const char **error);

/* Decompresses exactly content bytes into dst; false and *error on any damage or trailing bytes. */
extern bool tessera_frame_decompress(void *dst, size_t content, const void *src, size_t size, const char **error);

#endif							/* TESSERA_FRAME_H */
