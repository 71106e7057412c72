/* Products of four signed bytes, added up: VK_KHR_shader_integer_dot_product, which Debian 12's glslang does not know by name. */
#extension GL_EXT_spirv_intrinsics : require
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int signed_dot(uint a, uint b, spirv_literal int format); /* OpSDotKHR; format 0: four bytes */
int dot4(uint a, uint b) { return signed_dot(a, b, 0); }
