/* The kernels are in the binary, between the two symbols that cuda_fatbin() defines. */
#include <stdint.h>
#include <string.h>

#include "core/testing/cunit.h"

extern const unsigned char hl_kernels[], hl_kernels_end[];

static void the_symbols_delimit_a_fatbin(void)
{
    uint32_t magic;
    CU_ASSERT_TRUE_FATAL(hl_kernels_end > hl_kernels + sizeof magic);
    memcpy(&magic, hl_kernels, sizeof magic);
    CU_ASSERT_EQUAL(magic, 0xBA55ED50u);
    CU_ASSERT_EQUAL((uintptr_t)hl_kernels % 16, 0);
}

/* The header says how long the whole is: nothing was cut off or added. */
static void the_length_is_what_the_header_says(void)
{
    struct {
        uint32_t magic;
        uint16_t version, header_bytes;
        uint64_t bytes;
    } header;
    memcpy(&header, hl_kernels, sizeof header);
    CU_ASSERT_EQUAL(header.header_bytes + header.bytes, (uint64_t)(hl_kernels_end - hl_kernels));
}

HL_TESTS(kernel_embedded, HL_CASE(the_symbols_delimit_a_fatbin), HL_CASE(the_length_is_what_the_header_says));
