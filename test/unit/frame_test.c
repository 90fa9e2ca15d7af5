/*
 * frame_test.c
 *	  LZ4 frames: what is written can be read; whatever is cut, added or changed is refused, without reading or writing out of bounds (every buffer here
 *	  is allocated at its exact size, for the address sanitizer to watch).
 */
#include "codec/frame.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <lz4frame.h>

#include "tap.h"

typedef struct Frame
{
	unsigned char *data;
	size_t		size;
} Frame;

static void
fill(unsigned char *data, size_t size, int compressible)
{
	uint32_t	state = 12345;

	for (size_t i = 0; i < size; i++)
	{
		state = state * 1664525 + 1013904223;
		data[i] = compressible ? (unsigned char) ("row of a table "[i % 15]) : (unsigned char) (state >> 24);
	}
}

/* A copy of the first size bytes, at their exact size. */
static unsigned char *
exact(const unsigned char *data, size_t size)
{
	unsigned char *copy = malloc(size > 0 ? size : 1);

	memcpy(copy, data, size);
	return copy;
}

static Frame
frame_of(const unsigned char *content, size_t size)
{
	size_t		capacity = tessera_frame_bound(size);
	unsigned char *buffer = malloc(capacity);
	const char *error = NULL;
	Frame		frame;

	frame.size = tessera_frame_compress(buffer, capacity, content, size, &error);
	frame.data = exact(buffer, frame.size);
	free(buffer);
	return frame;
}

/* As a receiver reads a frame: size first, then memory, then content. The content is returned if the frame is good. */
static unsigned char *
receive(const unsigned char *data, size_t size, size_t limit, size_t *content)
{
	const char *error = NULL;
	unsigned char *buffer;

	if (!tessera_frame_content_size(data, size, limit, content, &error))
		return NULL;
	buffer = malloc(*content > 0 ? *content : 1);
	if (!tessera_frame_decompress(buffer, *content, data, size, &error))
	{
		free(buffer);
		return NULL;
	}
	return buffer;
}

static bool
round_trip(size_t size, int compressible)
{
	unsigned char *content = malloc(size > 0 ? size : 1);
	unsigned char *received;
	size_t		received_size = 0;
	Frame		frame;
	bool		same;

	fill(content, size, compressible);
	frame = frame_of(content, size);
	received = receive(frame.data, frame.size, size, &received_size);
	same = frame.size > 0 && received != NULL && received_size == size && memcmp(content, received, size) == 0;
	free(received);
	free(frame.data);
	free(content);
	return same;
}

/* True if the first size bytes of data, copied, are refused. */
static bool
refused(const unsigned char *data, size_t size)
{
	unsigned char *copy = exact(data, size);
	size_t		content;
	unsigned char *received = receive(copy, size, 1 << 20, &content);

	free(copy);
	free(received);
	return received == NULL;
}

static bool
every_truncation_refused(Frame frame)
{
	for (size_t size = 0; size < frame.size; size++)
	{
		if (!refused(frame.data, size))
			return false;
	}
	return true;
}

/*
 * Each bit flipped: refused, or the content is the same. (An eight-bit header checksum misses one change in 256, and a match may as well be copied from
 * an equal place; the checksum of the content is what counts.)
 */
static bool
no_flip_changes_content(Frame frame, const unsigned char *content, size_t content_size)
{
	bool		good = true;

	for (size_t i = 0; i < 8 * frame.size; i++)
	{
		unsigned char *copy = exact(frame.data, frame.size);
		unsigned char *received;
		size_t		size = 0;

		copy[i / 8] ^= (unsigned char) (1 << i % 8);
		received = receive(copy, frame.size, 1 << 20, &size);
		if (received != NULL && (size != content_size || memcmp(received, content, size) != 0))
			good = false;
		free(received);
		free(copy);
	}
	return good;
}

/* A frame of liblz4 itself, with other preferences than ours. */
static bool
foreign_frame_refused(bool with_size, bool with_checksum)
{
	unsigned char content[1000];
	unsigned char buffer[2000];
	LZ4F_preferences_t prefs;
	size_t		size;

	fill(content, sizeof(content), 1);
	memset(&prefs, 0, sizeof(prefs));
	prefs.frameInfo.contentSize = with_size ? sizeof(content) : 0;
	prefs.frameInfo.contentChecksumFlag = with_checksum ? LZ4F_contentChecksumEnabled : LZ4F_noContentChecksum;
	size = LZ4F_compressFrame(buffer, sizeof(buffer), content, sizeof(content), &prefs);
	return refused(buffer, size);
}

static void
test_limits(void)
{
	unsigned char content[1000];
	unsigned char buffer[2000];
	const char *error = NULL;
	size_t		stated = 0;
	Frame		frame;

	fill(content, sizeof(content), 1);
	frame = frame_of(content, sizeof(content));
	check(tessera_frame_content_size(frame.data, frame.size, sizeof(content), &stated, &error) && stated == sizeof(content),
		  "content size at the limit is stated");
	check(!tessera_frame_content_size(frame.data, frame.size, sizeof(content) - 1, &stated, &error) &&
		  strstr(error, "over the limit") != NULL, "content size over the limit is refused before anything is allocated");
	check(!tessera_frame_decompress(buffer, sizeof(content) - 1, frame.data, frame.size, &error), "another content size than expected is refused");
	check(!tessera_frame_decompress(buffer, sizeof(content) + 1, frame.data, frame.size, &error), "a larger content size than stated is refused");
	memcpy(buffer, frame.data, frame.size);
	buffer[frame.size] = 0;
	check(refused(buffer, frame.size + 1), "a byte after the frame is refused");
	memcpy(buffer + frame.size, frame.data, frame.size);
	check(refused(buffer, 2 * frame.size), "a second frame after the frame is refused");
	error = NULL;
	check(tessera_frame_compress(buffer, tessera_frame_bound(sizeof(content)) - 1, content, sizeof(content), &error) == 0 && error != NULL,
		  "a buffer that may be too small is refused");
	free(frame.data);
}

/* A frame that states 2^40 bytes: the header checksum must be right for the size to be looked at, so every value of it is tried. */
static void
test_huge_claim(void)
{
	unsigned char header[] = {0x04, 0x22, 0x4d, 0x18, 0x6c, 0x40, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};
	const char *error = NULL;
	size_t		stated;
	bool		accepted = false;
	int			over_limit = 0;

	for (int sum = 0; sum < 256; sum++)
	{
		header[14] = (unsigned char) sum;
		if (tessera_frame_content_size(header, sizeof(header), (size_t) 1 << 30, &stated, &error))
			accepted = true;
		else if (strstr(error, "over the limit") != NULL)
			over_limit++;
	}
	check(!accepted && over_limit == 1, "a frame that states a terabyte is refused for its size");
}

static void
test_damage(void)
{
	unsigned char content[700];
	Frame		frame;

	for (int compressible = 0; compressible < 2; compressible++)
	{
		fill(content, sizeof(content), compressible);
		frame = frame_of(content, sizeof(content));
		check(every_truncation_refused(frame), compressible ? "truncated at every byte: refused" : "incompressible, truncated at every byte: refused");
		check(no_flip_changes_content(frame, content, sizeof(content)),
			  compressible ? "each bit flipped: refused, or the same content" : "incompressible, each bit flipped: refused, or the same content");
		free(frame.data);
	}
	frame = frame_of(content, 0);
	check(every_truncation_refused(frame), "empty, truncated at every byte: refused");
	check(no_flip_changes_content(frame, content, 0), "empty, each bit flipped: refused, or nothing");
	free(frame.data);
	check(foreign_frame_refused(false, true), "a frame without content size is refused");
	check(foreign_frame_refused(true, false), "a frame without content checksum is refused");
	check(refused((const unsigned char *) "\x50\x2a\x4d\x18\x04\x00\x00\x00" "abcdefghijklmnop", 24), "a skippable frame is refused");
}

int
main(void)
{
	check(round_trip(0, 0), "round trip of nothing");
	check(round_trip(1, 0), "round trip of 1 byte");
	check(round_trip(65536, 1), "round trip of 64 kB");
	check(round_trip(5 << 20, 1), "round trip of 5 MB, compressible");
	check(round_trip((5 << 20) + 1, 0), "round trip of 5 MB and a byte, incompressible");
	test_limits();
	test_huge_claim();
	test_damage();
	return finish();
}
