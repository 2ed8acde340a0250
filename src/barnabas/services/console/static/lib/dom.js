// Preact with htm: markup as templates. Whatever is put into one is text, never markup.
import { h, render, Fragment } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
export { h, render, Fragment };
export { useState, useEffect, useRef, useMemo, useCallback, useLayoutEffect } from "../vendor/hooks.js";
