/* Sums of products of bytes, and src as bytes (prepare.comp): of a row first k / 4 words, then k / 32 scales. */
#extension GL_EXT_spirv_intrinsics : require
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int signed_dot(uint a, uint b, spirv_literal int format); /* OpSDotKHR; format 0: four bytes */
int dot4(uint a, uint b) { return signed_dot(a, b, 0); }

layout(set = 0, binding = 6) readonly buffer Bytes { uint bytes[]; };

int bytes_row(int row) { return row * (k / 32 * 9); }
