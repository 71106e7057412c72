/* What top.comp and pick.comp share. A piece's words: the key of the highest logit left out, the sum of weights, 2 unused, then ids
   and logits, (-1, -infinity) to the end. k has the number of pieces, rows_at where the batch block has fg_row_draw. */
const int PIECE = 4096, EACH = PIECE / GROUP, MOST = 128, WORDS = 4 + 2 * MOST; /* MOST: FG_MAX_CANDIDATES */
const uint LOWEST = 0x007FFFFFu, HIGHEST = 0xFF800000u; /* of -infinity and infinity */

int draws_at() { return rows_at; }

#include "key.glsl"

float weight_of(float x, float top, float temperature) { return key_of(x) > LOWEST ? exp((x - top) / temperature) : 0.0; }
