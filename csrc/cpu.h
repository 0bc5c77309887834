/* What the processor and the operating system offer. */
#ifndef FC_CPU_H
#define FC_CPU_H

int fc_cpu_has_avx2(void);       /* AVX2, FMA and F16C */
int fc_cpu_has_avx512(void);     /* those, and AVX-512 F, BW and VL */
int fc_cpu_has_avx512vnni(void); /* those, and VNNI */
int fc_cpu_has_avx512amx(void);  /* those, and AMX for bytes; asks the operating system for its tiles */
int fc_cpu_has_neondot(void);    /* dot products of bytes */
int fc_cpu_has_neoni8mm(void);   /* those, and products of matrices of bytes */

#endif
