/*
 * frame.c
 *	  LZ4 frames for the payload of exchange messages.
 *
 * A frame states its content size and carries a checksum of its content; a frame without either is refused, so that the reader knows what to allocate
 * before it decompresses, and no damage goes unnoticed. Skippable frames, dictionaries and data after the frame are refused too.
 *
 * Every call makes its own decompression context and frees it before it returns: no state is left after an error, and nothing here jumps out of the
 * middle. No memory is kept and no lock taken; a crash leaves nothing. Plain C, so that tests and fuzzers build it without the server.
 */
#include "codec/frame.h"

#include <stdint.h>
#include <string.h>

#include <lz4frame.h>

/* Bits of the frame descriptor's first byte, which follows the four bytes of the magic number. */
#define FLAGS_OFFSET 4
#define FLAG_CONTENT_SIZE 0x08

/*
 * The frame of no content. liblz4 takes content size 0 for "not known" and leaves the field out, so this one is written by hand: magic number, flags
 * (version 1, independent blocks, content size, content checksum), block size, content size, header checksum, end mark, checksum of nothing.
 */
static const unsigned char empty_frame[] = {
	0x04, 0x22, 0x4d, 0x18,
	0x6c, 0x40,
	0, 0, 0, 0, 0, 0, 0, 0,
	0x09,
	0, 0, 0, 0,
	0x05, 0x5d, 0xcc, 0x02
};

static LZ4F_preferences_t
preferences(size_t size)
{
	LZ4F_preferences_t result;

	memset(&result, 0, sizeof(result));
	result.frameInfo.blockSizeID = LZ4F_max1MB;
	result.frameInfo.blockMode = LZ4F_blockIndependent;
	result.frameInfo.contentChecksumFlag = LZ4F_contentChecksumEnabled;
	result.frameInfo.contentSize = size;
	return result;
}

/*
 * Largest frame, in bytes, that tessera_frame_compress may write for size bytes of content.
 */
size_t
tessera_frame_bound(size_t size)
{
	LZ4F_preferences_t prefs = preferences(size);

	if (size == 0)
		return sizeof(empty_frame);
	return LZ4F_compressFrameBound(size, &prefs);
}

/*
 * Compresses size bytes of src into dst, which has room for capacity bytes (tessera_frame_bound of size, at least). Returns the frame's length; 0 and
 * a static text in *error on failure.
 */
size_t
tessera_frame_compress(void *dst, size_t capacity, const void *src, size_t size, const char **error)
{
	LZ4F_preferences_t prefs = preferences(size);
	size_t		written;

	if (capacity < tessera_frame_bound(size))
	{
		*error = "buffer is too small for the LZ4 frame";
		return 0;
	}
	if (size == 0)
	{
		memcpy(dst, empty_frame, sizeof(empty_frame));
		return sizeof(empty_frame);
	}
	written = LZ4F_compressFrame(dst, capacity, src, size, &prefs);
	if (LZ4F_isError(written))
	{
		*error = LZ4F_getErrorName(written);
		return 0;
	}
	return written;
}

/*
 * Reads the frame's header with a fresh context. Sets *content to the content size stated and *header to the header's length.
 */
static bool
read_header(LZ4F_dctx *context, const void *src, size_t size, uint64_t *content, size_t *header, const char **error)
{
	LZ4F_frameInfo_t info;
	size_t		result;

	memset(&info, 0, sizeof(info));
	*header = size;
	result = LZ4F_getFrameInfo(context, &info, src, header);
	if (LZ4F_isError(result))
	{
		*error = LZ4F_getErrorName(result);
		return false;
	}
	if (info.frameType != LZ4F_frame)
		*error = "not an LZ4 frame with content";
	else if (info.dictID != 0)
		*error = "LZ4 frame needs a dictionary";
	else if (info.contentChecksumFlag != LZ4F_contentChecksumEnabled)
		*error = "LZ4 frame has no content checksum";
	else if ((((const unsigned char *) src)[FLAGS_OFFSET] & FLAG_CONTENT_SIZE) == 0)
		*error = "LZ4 frame does not state its content size";
	else
	{
		*content = info.contentSize;
		return true;
	}
	return false;
}

static LZ4F_dctx *
make_context(const char **error)
{
	LZ4F_dctx  *context;

	if (LZ4F_isError(LZ4F_createDecompressionContext(&context, LZ4F_VERSION)))
	{
		*error = "out of memory";
		return NULL;
	}
	return context;
}

/*
 * Content size, in bytes, that the header of the frame in src states. False and a static text in *error if the header is bad, states no content size,
 * or one over limit. Allocates nothing that depends on the frame: call it before allocating the content.
 */
bool
tessera_frame_content_size(const void *src, size_t size, size_t limit, size_t *content, const char **error)
{
	LZ4F_dctx  *context = make_context(error);
	uint64_t	stated;
	size_t		header;
	bool		good;

	if (context == NULL)
		return false;
	good = read_header(context, src, size, &stated, &header, error);
	LZ4F_freeDecompressionContext(context);
	if (good && stated > limit)
	{
		*error = "content of the LZ4 frame is over the limit";
		good = false;
	}
	if (good)
		*content = (size_t) stated;
	return good;
}

/*
 * Decompresses what follows the header, until the frame ends, the input ends or the output is full.
 */
static bool
decompress_blocks(LZ4F_dctx *context, char *dst, size_t content, const char *src, size_t size, const char **error)
{
	LZ4F_decompressOptions_t options;
	size_t		read = 0;
	size_t		written = 0;
	size_t		hint;

	memset(&options, 0, sizeof(options));
	options.stableDst = 1;
	do
	{
		size_t		out = content - written;
		size_t		in = size - read;

		hint = LZ4F_decompress(context, dst + written, &out, src + read, &in, &options);
		if (LZ4F_isError(hint))
		{
			*error = LZ4F_getErrorName(hint);
			return false;
		}
		if (hint != 0 && in == 0 && out == 0)
		{
			*error = (read == size) ? "LZ4 frame is truncated" : "LZ4 frame holds more than it states";
			return false;
		}
		read += in;
		written += out;
	} while (hint != 0);

	if (written != content)
		*error = "LZ4 frame holds less than expected";
	else if (read != size)
		*error = "data after the LZ4 frame";
	else
		return true;
	return false;
}

/*
 * Decompresses the frame in src, which must be size bytes long and hold exactly content bytes, into dst. False and a static text in *error on any
 * damage; dst is then undefined.
 */
bool
tessera_frame_decompress(void *dst, size_t content, const void *src, size_t size, const char **error)
{
	LZ4F_dctx  *context = make_context(error);
	uint64_t	stated;
	size_t		header;
	char		nothing;
	bool		good;

	if (context == NULL)
		return false;
	good = read_header(context, src, size, &stated, &header, error);
	if (good && stated != content)
	{
		*error = "LZ4 frame states another content size";
		good = false;
	}
	if (good)
		good = decompress_blocks(context, content > 0 ? dst : &nothing, content, (const char *) src + header, size - header, error);
	LZ4F_freeDecompressionContext(context);
	return good;
}
