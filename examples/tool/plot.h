/* Line charts as SVG files: axes from round numbers, one colour and one marker a line, a legend. Charts of one file stand
   below each other. Points that are not finite are left out. */

typedef struct {
    const char *name;
    const double *x, *y;
    int n;
} plot_line;

typedef struct {
    const char *title, *x_label, *y_label;
    const plot_line *lines;
    int n_lines;
    bool log_x; /* base 2; points at x <= 0 are left out */
} plot_chart;

/* The width without room for long names; those of the legend begin at PLOT_NAMES. */
enum { PLOT_WIDTH = 760, PLOT_HEIGHT = 400, PLOT_LEFT = 78, PLOT_RIGHT = 180, PLOT_TOP = 44, PLOT_BOTTOM = 56,
       PLOT_NAMES = PLOT_WIDTH - PLOT_RIGHT + 42 };

typedef struct {
    double low, high, step;
    bool log;
} plot_axis;

/* Okabe and Ito's colours, which readers with any colour vision tell apart. */
static const char *plot_colour(int i) {
    static const char *const colours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D00"};
    return colours[i % 8];
}

static void plot_text(FILE *f, const char *text) {
    for (; *text; text++) {
        if (*text == '<') fputs("&lt;", f);
        else if (*text == '&') fputs("&amp;", f);
        else fputc(*text, f);
    }
}

/* A number of the kind 1, 2 or 5 times a power of ten, about `range` / 6. */
static double plot_step(double range) {
    double power = pow(10.0, floor(log10(range / 6.0))), rest = range / 6.0 / power;
    return power * (rest < 1.5 ? 1.0 : rest < 3.5 ? 2.0 : rest < 7.5 ? 5.0 : 10.0);
}

static bool plot_shows(const plot_chart *c, const plot_line *line, int i) {
    double x = line->x[i], y = line->y[i];
    return x - x == 0.0 && y - y == 0.0 && (!c->log_x || x > 0.0);
}

/* The range of the shown points; the y axis starts at zero unless values are negative. */
static void plot_axes(const plot_chart *c, plot_axis *x, plot_axis *y) {
    double x0 = HUGE_VAL, x1 = -HUGE_VAL, y0 = 0.0, y1 = 0.0;
    int i, k;
    for (k = 0; k < c->n_lines; k++)
        for (i = 0; i < c->lines[k].n; i++) {
            double px, py = c->lines[k].y[i];
            if (!plot_shows(c, &c->lines[k], i)) continue;
            px = c->log_x ? log2(c->lines[k].x[i]) : c->lines[k].x[i];
            x0 = px < x0 ? px : x0, x1 = px > x1 ? px : x1;
            y0 = py < y0 ? py : y0, y1 = py > y1 ? py : y1;
        }
    if (x0 > x1) x0 = 0.0, x1 = 1.0;
    if (x1 - x0 < 1e-9) x0 -= 0.5, x1 += 0.5;
    if (y1 - y0 < 1e-9) y1 = y0 + 1.0;
    x->log = c->log_x, y->log = false;
    x->step = c->log_x ? 1.0 : plot_step(x1 - x0), y->step = plot_step((y1 - y0) * 1.04);
    x->low = x->step * floor(x0 / x->step + 1e-9), x->high = c->log_x ? ceil(x1 - 1e-9) : x1; /* powers of two, which have numbers */
    y->low = y->step * floor(y0 / y->step), y->high = y->step * ceil((y1 * 1.02 - 1e-12) / y->step);
}

static double plot_x(const plot_axis *a, double x) {
    double at = a->log ? log2(x) : x;
    return PLOT_LEFT + (PLOT_WIDTH - PLOT_LEFT - PLOT_RIGHT) * (at - a->low) / (a->high - a->low);
}

static double plot_y(const plot_axis *a, double y) {
    return PLOT_HEIGHT - PLOT_BOTTOM - (PLOT_HEIGHT - PLOT_TOP - PLOT_BOTTOM) * (y - a->low) / (a->high - a->low);
}

static void plot_grid(FILE *f, const plot_axis *x, const plot_axis *y) {
    double v;
    for (v = y->low; v <= y->high + y->step * 0.01; v += y->step) {
        double at = plot_y(y, v);
        fprintf(f, "<path d='M%d %.1fH%d' stroke='#ddd'/><text x='%d' y='%.1f' text-anchor='end'>%.6g</text>\n", PLOT_LEFT, at,
                PLOT_WIDTH - PLOT_RIGHT, PLOT_LEFT - 8, at + 4.0, fabs(v) < y->step * 1e-6 ? 0.0 : v);
    }
    for (v = ceil(x->low / x->step - 1e-9) * x->step; v <= x->high + x->step * 0.01; v += x->step) {
        double shown = x->log ? exp2(v) : v, at = plot_x(x, shown);
        fprintf(f, "<path d='M%.1f %dv5' stroke='#333'/><text x='%.1f' y='%d' text-anchor='middle'>%.6g</text>\n", at,
                PLOT_HEIGHT - PLOT_BOTTOM, at, PLOT_HEIGHT - PLOT_BOTTOM + 20, fabs(shown) < x->step * 1e-6 ? 0.0 : shown);
    }
    fprintf(f, "<path d='M%d %dV%dH%d' stroke='#333' fill='none'/>\n", PLOT_LEFT, PLOT_TOP, PLOT_HEIGHT - PLOT_BOTTOM,
            PLOT_WIDTH - PLOT_RIGHT);
}

static void plot_draw_line(FILE *f, const plot_chart *c, int k, const plot_axis *x, const plot_axis *y) {
    const plot_line *line = &c->lines[k];
    int i, n = 0;
    fprintf(f, "<g stroke='%s' fill='%s'><path fill='none' stroke-width='2' d='", plot_colour(k), plot_colour(k));
    for (i = 0; i < line->n; i++)
        if (plot_shows(c, line, i))
            fprintf(f, "%s%.1f %.1f", n++ ? "L" : "M", plot_x(x, line->x[i]), plot_y(y, line->y[i]));
    fprintf(f, "'/>");
    for (i = 0; i < line->n; i++)
        if (plot_shows(c, line, i) && line->n <= 64)
            fprintf(f, "<circle cx='%.1f' cy='%.1f' r='3'/>", plot_x(x, line->x[i]), plot_y(y, line->y[i]));
    fprintf(f, "</g>\n<path d='M%d %dh22' stroke='%s' stroke-width='3'/><text x='%d' y='%d'>", PLOT_WIDTH - PLOT_RIGHT + 14,
            PLOT_TOP + 10 + 20 * k, plot_colour(k), PLOT_NAMES, PLOT_TOP + 14 + 20 * k);
    plot_text(f, line->name);
    fputs("</text>\n", f);
}

static void plot_draw(FILE *f, const plot_chart *c) {
    plot_axis x, y;
    int k;
    plot_axes(c, &x, &y);
    plot_grid(f, &x, &y);
    fprintf(f, "<text x='%d' y='24' font-size='16' font-weight='bold'>", PLOT_LEFT);
    plot_text(f, c->title);
    fprintf(f, "</text>\n<text x='%d' y='%d' text-anchor='middle'>", (PLOT_LEFT + PLOT_WIDTH - PLOT_RIGHT) / 2, PLOT_HEIGHT - 14);
    plot_text(f, c->x_label);
    fprintf(f, "</text>\n<text transform='translate(18 %d) rotate(-90)' text-anchor='middle'>",
            (PLOT_TOP + PLOT_HEIGHT - PLOT_BOTTOM) / 2);
    plot_text(f, c->y_label);
    fputs("</text>\n", f);
    for (k = 0; k < c->n_lines; k++) plot_draw_line(f, c, k, &x, &y);
}

/* The width that has room for all names, by the eight pixels that a character of wide fonts has in the mean. */
static int plot_width(const plot_chart *charts, int n_charts) {
    int width = PLOT_WIDTH, i, k;
    for (i = 0; i < n_charts; i++)
        for (k = 0; k < charts[i].n_lines; k++) {
            const char *name = charts[i].lines[k].name;
            size_t at = 0, length = strlen(name);
            int columns = 0;
            while (at < length) columns += next_char(name, length, &at, NULL);
            if (PLOT_NAMES + 8 * columns + 8 > width) width = PLOT_NAMES + 8 * columns + 8;
        }
    return width;
}

/* Writes the charts to a file: 0, or -1 and errno. */
static int plot_write(const char *path, const plot_chart *charts, int n_charts) {
    FILE *f = open_for_writing(path);
    int width = plot_width(charts, n_charts), i, bad;
    if (!f) return -1;
    fprintf(f, "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' width='%d' height='%d' font-family='sans-serif' "
               "font-size='12'>\n<rect width='100%%' height='100%%' fill='white'/>\n",
            width, PLOT_HEIGHT * n_charts, width, PLOT_HEIGHT * n_charts);
    for (i = 0; i < n_charts; i++) {
        fprintf(f, "<g transform='translate(0 %d)'>\n", i * PLOT_HEIGHT);
        plot_draw(f, &charts[i]);
        fputs("</g>\n", f);
    }
    fputs("</svg>\n", f);
    bad = ferror(f);
    return fclose(f) != 0 || bad ? -1 : 0;
}
