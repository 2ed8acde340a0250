// Event streams of a single page: searches and tails.
import { ApiError, get } from "./api.js";

/** `handlers`: by event name. Returns a function that stops the stream. The end of a search closes it, too. */
export function open(path, handlers) {
  const stream = new EventSource(path);
  let isOver = false;
  const stop = () => {
    isOver = true;
    stream.close();
  };
  for (const [name, handle] of Object.entries(handlers)) {
    if (name === "error") continue;
    stream.addEventListener(name, (event) => {
      if (name === "end") stop();
      handle(JSON.parse(event.data));
    });
  }
  stream.addEventListener("failed", (event) => {
    stop();
    const { error } = JSON.parse(event.data);
    handlers.error?.(new ApiError(0, error.code, error.message));
  });
  stream.onerror = async () => {
    if (isOver || stream.readyState !== EventSource.CLOSED) return;
    stop();
    // A failed stream has no reason: an ordinary request gets it.
    try {
      await get(path);
    } catch (error) {
      handlers.error?.(error.code === "NO_JSON" ? new ApiError(0, "CLOSED", "the console closed the stream") : error);
    }
  };
  return stop;
}
