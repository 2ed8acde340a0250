// Every page: { path, title, nav?, View }. `nav` is { label, group }; those without one are reached from others.
import { page as topics } from "./pages/topics.js";
import { page as topic } from "./pages/topic.js";

export const PAGES = [topics, topic];
