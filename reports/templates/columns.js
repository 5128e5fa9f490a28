"use strict";
// Columns of unsigned 32-bit integers: the four bytes of each apart, compressed, in base64. Null where the browser cannot.
window.unpackColumns = async (packed) => {
  if (typeof DecompressionStream === "undefined") return null;
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const raw = new Uint8Array(await new Response(stream).arrayBuffer());
  let at = 0;
  return (n) => {
    const out = new Uint32Array(n);
    for (let plane = 0; plane < 4; plane++) {
      const shift = 8 * plane;
      for (let i = 0; i < n; i++) out[i] |= raw[at + i] << shift;
      at += n;
    }
    return out;
  };
};
